#pragma once

// Text to token ids and back.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::text {

struct EncodeOptions {
  bool add_special_tokens = true;    // BOS (and EOS) if the model's post-processor adds them
  bool parse_special_tokens = true;  // "<|im_end|>" in the text becomes its id; false: plain text
};

struct EncodedToken {
  int32_t id = 0;
  // The part of the input that the token covers, in bytes, half open; empty for an added BOS.
  int64_t begin = 0;
  int64_t end = 0;
};

// Immutable after creation; thread-safe. Invalid UTF-8 in `text` is replaced as in the vocabulary's
// reference implementation (U+FFFD per maximal invalid part).
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int32_t vocab_size() const = 0;
  virtual std::vector<EncodedToken> Encode(std::string_view text,
                                           const EncodeOptions& options) const = 0;

  // The bytes that a token appends to a text: part of a UTF-8 character for a byte-level token, "
  // word" for "Ġword" or "▁word"; a special token's own text. Empty for an id outside 0 ..
  // vocab_size(), which a model that pads its vocabulary has.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  // The token as the vocabulary writes it ("Ġword"), for display; empty where TokenBytes is.
  virtual std::string_view Piece(int32_t id) const = 0;
  // The ids of a model's vocabulary that have no text, ascending: holes of this vocabulary, and the
  // model's ids beyond its end (padding).
  std::vector<int32_t> IdsWithoutPiece(int64_t model_vocab_size) const;
  virtual bool IsSpecial(int32_t id) const = 0;
  // The most bytes of a text that one token covers, so that a text of n bytes has at least n /
  // max_token_bytes tokens. 0: no bound is known, as when white space is dropped.
  virtual int64_t max_token_bytes() const = 0;
  // True if decoding from the text's start drops a leading space of the first token.
  virtual bool strips_leading_space() const = 0;

  // Decodes a whole text: TokenBytes joined, the leading space rule applied, invalid UTF-8 as
  // U+FFFD.
  // Ids out of range are skipped.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  virtual int32_t bos_id() const = 0;  // -1: none
  // Every id that ends generation: EOS and the model's other end-of-turn tokens; sorted.
  virtual const std::vector<int32_t>& end_ids() const = 0;
};

}  // namespace quire::text
