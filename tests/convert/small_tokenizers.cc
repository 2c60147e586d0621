#include "tests/convert/small_tokenizers.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "text/tokenizer/byte_alphabet.h"

namespace quire::convert::testing {

using nlohmann::json;

json ByteLevelJson() {
  json vocab = json::object();
  json merges = json::array();
  const auto add = [&](const std::string& piece) { vocab.emplace(piece, vocab.size()); };
  for (int byte = 0; byte < 256; ++byte)
    add(std::string(text::ByteCharacter(static_cast<uint8_t>(byte))));
  const std::string characters = "abABst12.,!?'`/ \n\r\t";
  const auto piece_of = [](char c) {
    return std::string(text::ByteCharacter(static_cast<uint8_t>(c)));
  };
  for (const char left : characters) {
    for (const char right : characters) {
      add(piece_of(left) + piece_of(right));
      merges.push_back(piece_of(left) + " " + piece_of(right));
    }
  }
  for (const char c : std::string("12a.")) {
    const std::string one = piece_of(c);
    add(one + one + one);
    merges.push_back(one + one + " " + one);
  }
  add("stab");  // no merge makes this token
  const auto token = [&](const std::string& content, bool special) {
    return json{{"id", vocab.size() + (special ? 0 : 1)},
                {"content", content},
                {"special", special},
                {"normalized", false}};
  };
  return {{"added_tokens", {token("<|end|>", true), token("<think>", false)}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

json SplitsOf(const std::vector<std::string_view>& patterns) {
  json steps = json::array();
  for (const std::string_view pattern : patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(pattern)}}},
                     {"behavior", "Isolated"}});
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

json SentencePieceJson() {
  json vocab = json::object();
  const auto add = [&](const std::string& piece) { vocab.emplace(piece, vocab.size()); };
  for (const char* special : {"<unk>", "<s>", "</s>"}) add(special);
  for (int byte = 0; byte < 256; ++byte)
    add(absl::StrCat("<0x", absl::Hex(byte < 16 ? 0 : byte / 16), absl::Hex(byte % 16), ">"));
  for (const char* letter : {"▁", "h", "e", "l", "o", "w"}) add(letter);
  for (const char* word : {"he", "ll", "▁w", "lo", "llo", "▁he", "▁hello"}) add(word);
  json added = json::array();
  for (int id = 0; id < 3; ++id) {
    added.push_back({{"id", id},
                     {"content", id == 0   ? "<unk>"
                                 : id == 1 ? "<s>"
                                           : "</s>"},
                     {"special", true},
                     {"normalized", false}});
  }
  return {{"added_tokens", added},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"h e", "l l", "▁ w", "l o", "ll o", "l lo", "▁ he", "▁he llo"}}}}};
}

}  // namespace quire::convert::testing
