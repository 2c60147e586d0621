#include "convert/tokenizer_probe.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/utf8.h"
#include "text/tokenizer/normal_form.h"

namespace quire::convert {
namespace {

// Texts that pre-tokenizers split differently. They contain several scripts and cases,
// contractions, runs of digits, of punctuation and of every kind of space, and characters that join
// letters but are not letters.
constexpr std::string_view kHardTexts[] = {
    "Once upon a time, there was a little girl named Lily.",
    "HTMLParser camelCase PascalCase snake_case SCREAMING_CASE kebab-case aB Ab ABc abC",
    "I'm you're he's she'll they'd we've don't it's'll",
    "I'M YOU'RE HE'S SHE'LL THEY'D WE'VE DON'T 'S'T'RE'Ve'lL",
    "x's x'S 's 'S 'tis y''s z'sa",
    "1 12 123 1234 12345 123456 1234567 a1 a12 a123 a1234 1a 12a 123a",
    " 1  12 -1 +12 3.14 1,000,000 1e10 0x1F 2026-11-22 08:15:00",
    "x=1;y=22;z=333;w=4444;(55555)",
    "! !! !!! ?! ... .. . ,,, ;; :: -- --- ___ ** *** // /* */ #!/bin/sh",
    "a! a!! a!b a.b.c a,b a;b (a) [b] {c} <d> \"e\" 'f' `g` ``h`` ```i```",
    "` `` a` `b $1 $$ + ++ a+b = == === => <= < > ^ ~ ~~ | || a|b \\ \\n @x #y %z & &&",
    "a  b   c    d     e      f       g        h                h",
    "a \n b\nc\n\nd\n\n\ne\n \nf \n\n g\n  h",
    "a\r\nb\r\n\r\nc\rd\r\re \r\n f",
    "a\tb\t\tc\t\t\td \t e\t f \tg",
    "\n",
    "\n\n",
    "\t",
    "  ",
    "   ",
    " \n",
    "\n ",
    "\r\n",
    " a",
    "  a",
    "\na",
    "\n\na",
    "\ta",
    "trailing ",
    "trailing  ",
    "trailing\n",
    "trailing\n\n",
    "trailing \n ",
    "trailing\t",
    "end.\n",
    "end.\n\n",
    "end.\r\n",
    "end!\n a",
    "a/\n b/ c//\n",
    "?!\n\n\nx",
    ".\n.\n ..\n",
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\vh\fi",
    "a\u200bb\u200dc\ufeffd\u2060e",
    "caf\u00e9 na\u00efve Stra\u00dfe fa\u00e7ade \u00c9T\u00c9 \u00e9t\u00e9",
    "\u0424\u0438\u043b\u043e\u0441\u043e\u0444\u0438\u044f \u043f\u0440\u0438\u0432\u0435\u0442"
    "\u041c\u0438\u0440 \u041c\u041e\u0421\u041a\u0412\u0410",
    "\u039f\u03b4\u03c5\u03c3\u03c3\u03b5\u03cd\u03c2 \u03b1\u0392",
    "\u4eba\u4eba\u751f\u800c\u81ea\u7531\uff0c\u5728\u5c0a\u56b4\u3002\u6771\u4eac2026\u5e74",
    "\u3072\u3089\u304c\u306a\u30ab\u30bf\u30ab\u30ca\u3001\u6f22\u5b57",
    "\ud55c\uad6d\uc5b4 \uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627\u060c \u0627\u0644\u0633\u0644\u0627\u0645\u06d4 \u0663\u0664",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947\u0964 \u0939\u093f\u0928\u094d\u0926\u0940 \u0967\u0968",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "q\u0303 x\u0301y m\u0302\u0323 1\u20e3",
    "\u00bd \u00b2 x\u00b2 \u2167 \u2460 \u0663\u0664\u0665 \U0001d7d8\U0001d7d9",
    "\u2014 \u2018a\u2019 \u201cb\u201d a\u2019s \u2026 \u00bfque? \u20ac5 \u00a9 \u2192 \u221e",
    "\U0001f642\U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd "
    "\u2764\ufe0f \U0001f1eb\U0001f1f7",
    "def f(x):\n    return x ** 2  # squared\n\n\nclass A:\n\tpass\n",
    "if (a && b) {\n  c[i]++;\n}\n\n// done\r\n",
    "{\"key\": [1, 22, 333], \"url\": \"https://example.com/a?b=c&d=%20\"}",
};

constexpr size_t kPiecesTogether = 8;
constexpr size_t kStride = 7919;  // a prime; keeps neighbours in the vocabulary apart in a text
constexpr size_t kShownBytes = 80;
constexpr size_t kShownIds = 16;

std::string Shown(const std::vector<int32_t>& ids) {
  const size_t count = std::min(ids.size(), kShownIds);
  std::string text = absl::StrJoin(ids.begin(), ids.begin() + static_cast<int64_t>(count), " ");
  return count < ids.size() ? text + " ..." : text;
}

}  // namespace

std::string Describe(const TokenizerDifference& difference) {
  const bool whole = difference.text.size() <= kShownBytes;
  const std::string text =
      base::LossyUtf8(std::string_view(difference.text).substr(0, kShownBytes));
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), whole ? "\"" : "\"...", ": want ",
                      Shown(difference.want), ", got ", Shown(difference.got));
}

std::vector<int32_t> PlainIds(const text::Tokenizer& tokenizer, std::string_view text,
                              bool parse_special_tokens) {
  const auto tokens = tokenizer.Encode(
      text, {.kind = text::InputKind::kPart, .parse_special_tokens = parse_special_tokens});
  std::vector<int32_t> ids;
  if (!tokens.ok()) return ids;
  for (const text::EncodedToken& token : *tokens) ids.push_back(token.id);
  return ids;
}

TokenizerProbe::TokenizerProbe(const text::Tokenizer& wanted,
                               const TokenizerProbeOptions& options) {
  for (const std::string_view text : kHardTexts) Add(std::string(text), wanted, options);
  AddVocabulary(wanted, options);
}

void TokenizerProbe::AddVocabulary(const text::Tokenizer& wanted,
                                   const TokenizerProbeOptions& options) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < wanted.vocab_size(); ++id) {
    const auto index = static_cast<size_t>(id);
    if (index < options.left_out.size() && options.left_out[index]) continue;
    if (base::IsValidUtf8(wanted.TokenBytes(id))) ids.push_back(id);
  }
  for (const int32_t id : ids) Add(std::string(wanted.TokenBytes(id)), wanted, options);
  std::string together;
  for (size_t i = 0; i < ids.size(); ++i) {
    together += wanted.TokenBytes(ids[i * kStride % ids.size()]);
    if (i % kPiecesTogether + 1 == kPiecesTogether)
      Add(std::exchange(together, {}), wanted, options);
  }
  Add(std::move(together), wanted, options);
}

void TokenizerProbe::Add(std::string text, const text::Tokenizer& wanted,
                         const TokenizerProbeOptions& options) {
  if (text.empty()) return;
  if (options.nfc) {
    if (const auto normal = text::ToNormalForm(text::NormalForm::kNfc, {.text = text}))
      text = normal->text;
  }
  if (!options.leading_space && (text.starts_with(' ') || text.starts_with("\u2581"))) {
    text = absl::StrCat("x", text);
  }
  const bool missing = std::any_of(text.begin(), text.end(), [&](char c) {
    return options.missing_bytes[static_cast<uint8_t>(c)];
  });
  if (missing) return;
  std::vector<int32_t> ids = PlainIds(wanted, text, /*parse_special_tokens=*/false);
  probes_.push_back({std::move(text), std::move(ids)});
}

std::optional<TokenizerDifference> TokenizerProbe::FirstDifference(
    const text::Tokenizer& other) const {
  for (size_t i = 0; i < probes_.size(); ++i) {
    std::vector<int32_t> got = PlainIds(other, probes_[i].text, /*parse_special_tokens=*/false);
    if (got == probes_[i].ids) continue;
    return TokenizerDifference{
        .text_index = i, .text = probes_[i].text, .want = probes_[i].ids, .got = std::move(got)};
  }
  return std::nullopt;
}

}  // namespace quire::convert
