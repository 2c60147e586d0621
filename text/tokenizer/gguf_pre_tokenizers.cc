#include "text/tokenizer/gguf_pre_tokenizers.h"

#include <algorithm>
#include <iterator>

namespace quire::text {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
constexpr std::string_view kLlama3 =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+";
// The pattern of Mistral's Tekken, which splits a word where the case changes. llama.cpp writes its
// letters other than a to z as the group ((?=[\p{L}])([^a-z])), and repeats it. A repeated group
// takes memory for each letter, and the class [^\P{L}a-z] takes none.
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[^\P{L}a-z]*[^\P{L}A-Z]+|[^\r\n\p{L}\p{N}]?[^\P{L}a-z]+[^\P{L}A-Z]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The pattern of GPT-4o (o200k), as llama.cpp reads it. A word may end with an English contraction.
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[^\P{L}a-z]*[^\P{L}A-Z]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[^\P{L}a-z]+[^\P{L}A-Z]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";

struct NamedPreTokenizer {
  std::string_view name;
  GgufPreTokenizer pre_tokenizer;
};

// Conversion tries the names in this order and takes the first that produces the right tokens.
// Among names that split alike, the best known comes first. A pre-tokenizer that splits off each
// digit comes before one that keeps digits together (qwen2 before llama-bpe, viking before bloom):
// both can produce the right tokens if no token has two digits.
const std::vector<NamedPreTokenizer>& Table() {
  static const auto* const table = [] {
    const GgufPreTokenizer gpt2{.patterns = {kGpt2}};
    const GgufPreTokenizer digits_alone{.patterns = {kDigit, kGpt2}};
    const GgufPreTokenizer llama3{.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true};
    const GgufPreTokenizer qwen2{.patterns = {kQwen2}};
    auto* rows = new std::vector<NamedPreTokenizer>;
    for (const std::string_view name :
         {"gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "mellum", "gigachat", "trillion",
          "granite-docling", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "modern-bert"}) {
      rows->push_back({name, gpt2});
    }
    for (const std::string_view name :
         {"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"}) {
      rows->push_back({name, qwen2});
    }
    for (const std::string_view name : {"llama-bpe", "llama3", "llama-v3", "falcon3"}) {
      rows->push_back({name, llama3});
    }
    for (const std::string_view name :
         {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}) {
      rows->push_back({name, digits_alone});
    }
    rows->push_back({"viking", {.patterns = {kBloom, kDigit}}});
    for (const std::string_view name : {"bloom", "poro-chat", "gpt3-finnish"}) {
      rows->push_back({name, {.patterns = {kBloom}}});
    }
    rows->insert(
        rows->end(),
        {{"falcon", {.patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, kThreeDigits}}},
         {"tekken", {.patterns = {kTekken}, .ignore_merges = true, .add_bos = true}},
         {"gpt-4o", {.patterns = {kGpt4o}}},
         {"llama4", {.patterns = {kGpt4o}}},
         {"dbrx", {.patterns = {kLlama3}}},
         {"smaug-bpe", {.patterns = {kLlama3}}},
         {"default", {.patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", kThreeDigits}}}});
    return rows;
  }();
  return *table;
}

}  // namespace

const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name) {
  if (name.empty()) name = "default";
  for (const NamedPreTokenizer& row : Table()) {
    if (row.name == name) return &row.pre_tokenizer;
  }
  return nullptr;
}

std::vector<std::string_view> DistinctGgufPreTokenizers() {
  std::vector<const NamedPreTokenizer*> distinct;
  for (const NamedPreTokenizer& row : Table()) {
    const bool is_new = std::none_of(distinct.begin(), distinct.end(), [&](const auto* other) {
      return other->pre_tokenizer.SplitsAs(row.pre_tokenizer);
    });
    if (is_new) distinct.push_back(&row);
  }
  std::vector<std::string_view> names;
  for (const NamedPreTokenizer* row : distinct) names.push_back(row->name);
  return names;
}

std::string GgufPreTokenizerNames() {
  std::string names;
  for (const NamedPreTokenizer& row : Table()) {
    if (!names.empty()) names.append(", ");
    names.append(row.name);
  }
  return names;
}

}  // namespace quire::text
