#include "text/tokenizer/sentencepiece.h"

#include <utility>

#include "absl/status/statusor.h"

#include "base/check.h"
#include "text/tokenizer/regex.h"

namespace quire::text {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::optional<uint8_t> ByteOfPiece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  const int high = HexDigit(piece[3]);
  const int low = HexDigit(piece[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

std::string SpacesForMarkers(std::string_view piece) {
  std::string out;
  out.reserve(piece.size());
  for (size_t i = 0; i < piece.size();) {
    if (piece.substr(i).starts_with(kSpaceMarker)) {
      out.push_back(' ');
      i += kSpaceMarker.size();
    } else {
      out.push_back(piece[i++]);
    }
  }
  return out;
}

bool JoinsAcrossSpace(std::string_view left, std::string_view right) {
  return right.starts_with(kSpaceMarker) && !left.ends_with(kSpaceMarker);
}

void SplitBeforeSpaces(PreTokenizer& pre_tokenizer) {
  absl::StatusOr<Regex> words = Regex::Create("\\x{2581}*[^\\x{2581}]+|\\x{2581}+");
  QUIRE_CHECK(words.ok()) << words.status().ToString();
  pre_tokenizer.AddSplit(*std::move(words), SplitBehavior::kIsolated, /*invert=*/false);
}

}  // namespace quire::text
