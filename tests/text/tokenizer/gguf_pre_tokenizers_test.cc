#include "text/tokenizer/gguf_pre_tokenizers.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tests/text/tokenizer/goldens.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace quire::text {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

// Runs that are hard to split: each is repeated.
constexpr std::string_view kRuns[] = {
    "Z",           // capitals, which end a word of Tekken and GPT-4o
    "z",           // small letters
    "Zz",          // both in turn
    "\u00e9",      // a small letter beyond ASCII
    "\u00c9Z",     // letters without a case for those patterns, and with one
    "7",           // digits
    " ",           // spaces
    "\n",          // line breaks
    " \n",         // both
    "\r\n\t",      // white space of every kind
    "!",           // punctuation
    "/",           // the punctuation that may end a run of line breaks
    "\u4eba",      // CJK
    "\U0001f642",  // emoji
    "e\u0301",     // combining marks
    "'",           // apostrophes
    "'s",          // contractions
};
constexpr size_t kRunBytes = kSanitized ? 50'000 : 1'000'000;
// One word of a split takes 32 bytes in each of two lists, and a run has a word for each byte.
constexpr int64_t kMostMiB = 200;

PreTokenizer Make(const std::vector<std::string_view>& patterns) {
  PreTokenizer pre_tokenizer;
  for (const std::string_view pattern : patterns) {
    auto regex = Regex::Create(pattern);
    EXPECT_TRUE(regex.ok()) << regex.status();
    pre_tokenizer.AddSplit(*std::move(regex), SplitBehavior::kIsolated, /*invert=*/false);
  }
  return pre_tokenizer;
}

// Returns a line of /proc/self/status, in MiB.
int64_t StatusMiB(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size() + 1)) / 1024;
  }
  return 0;
}

// The most memory that `work` takes beyond what the process had, in MiB.
template <typename Work>
int64_t PeakMiB(const Work& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // makes the peak what the process has now
  const int64_t before = StatusMiB("VmRSS:");
  work();
  return StatusMiB("VmHWM:") - before;
}

TEST(GgufPreTokenizersTest, EveryPatternSplitsEveryLongRun) {
  ASSERT_EQ(std::size(kRuns), 17u);
  for (const std::string_view name : DistinctGgufPreTokenizers()) {
    const PreTokenizer pre_tokenizer = Make(FindGgufPreTokenizer(name)->patterns);
    for (const std::string_view run : kRuns) {
      SCOPED_TRACE(absl::StrCat(std::string(name), ", run of ", std::string(run)));
      std::string text = "a ";
      while (text.size() < kRunBytes) text += run;
      text += " b";
      const int64_t peak = PeakMiB([&] {
        SplitText split;
        const absl::Status status = pre_tokenizer.Split({.text = text}, split);
        ASSERT_TRUE(status.ok()) << status;
        size_t at = 0;
        for (const TextPart& word : split.words) {
          if (word.text.data() == text.data() + at) at += word.text.size();
        }
        EXPECT_EQ(at, text.size()) << "the words are not the text";
        // The end is split from the run: the pattern did not give up on the way.
        EXPECT_TRUE(split.words.back().text == "b" || split.words.back().text == " b")
            << split.words.back().text.substr(0, 20);
      });
      EXPECT_LE(kSanitized ? 0 : peak, kMostMiB);
    }
  }
}

TEST(GgufPreTokenizersTest, ALongRunOfCapitalsIsSplitFromWhatFollows) {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) {
    pieces.emplace_back(ByteCharacter(static_cast<uint8_t>(byte)));
  }
  pieces.emplace_back("Z\u0120");  // a merge across the border of the words
  pieces.emplace_back("<s>");
  std::vector<int32_t> types(pieces.size(), static_cast<int32_t>(GgufTokenType::kNormal));
  types.back() = static_cast<int32_t>(GgufTokenType::kControl);
  for (const std::string_view name : {"gpt-4o", "llama4", "tekken"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = CreateTokenizer(GgufVocabulary{.model = "gpt2",
                                                          .pre = name,
                                                          .tokens = {pieces.begin(), pieces.end()},
                                                          .token_types = types,
                                                          .merges = {"Z \u0120"},
                                                          .bos_id = 257,
                                                          .add_bos = true});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const std::string text = std::string(1'200'000, 'Z') + " b";
    const int64_t peak =
        PeakMiB([&] { EXPECT_EQ(testing::Encoded(**tokenizer, text).size(), 1u + 1'200'002u); });
    EXPECT_LT(kSanitized ? 0 : peak, 250);
  }
}

// llama.cpp's own patterns, which repeat groups.
constexpr std::string_view kTekkenOfLlamaCpp =
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4oOfLlamaCpp =
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST(GgufPreTokenizersTest, SplitsAsLlamaCppsPatternsDo) {
  constexpr std::string_view kCharacters[] = {
      "a",      "b",      "z",          "A",      "B",      "Z",      "s",      "S",
      "'",      "'re",    "'LL",        "7",      "42",     " ",      "  ",     "\n",
      "\r\n",   "\t",     ".",          "/",      "-",      "_",      "\u00e9", "\u00c9",
      "\u00df", "\u01c5", "\u02b0",     "\u4eba", "\u3072", "\u0301", "\u0915", "\u093f",
      "\u0660", "\u2167", "\U0001f642", "\u200d", "\u00a0", "\u0130", "\u212a", "\u017f"};
  std::mt19937 random(7);
  const auto split = [](const PreTokenizer& pre_tokenizer, std::string_view text) {
    SplitText out;
    EXPECT_TRUE(pre_tokenizer.Split({.text = text}, out).ok());
    std::vector<std::string> words;
    for (const TextPart& word : out.words) words.emplace_back(word.text);
    return words;
  };
  for (const auto& [name, pattern] :
       {std::pair("tekken", kTekkenOfLlamaCpp), std::pair("gpt-4o", kGpt4oOfLlamaCpp),
        std::pair("llama4", kGpt4oOfLlamaCpp)}) {
    const PreTokenizer ours = Make(FindGgufPreTokenizer(name)->patterns);
    const PreTokenizer theirs = Make({pattern});
    for (int i = 0; i < 20'000; ++i) {
      std::string text;
      const auto length = 1 + random() % 24;
      for (size_t k = 0; k < length; ++k) text += kCharacters[random() % std::size(kCharacters)];
      ASSERT_EQ(split(ours, text), split(theirs, text)) << name << ": " << text;
    }
  }
}

}  // namespace
}  // namespace quire::text
