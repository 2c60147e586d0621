#pragma once

// Converts text to token ids and back.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/input_frame.h"

namespace quire::text {

struct EncodeOptions {
  InputKind kind = InputKind::kPrompt;  // decides which tokens are put around those of the text
  bool parse_special_tokens = true;     // true: "<|im_end|>" becomes that token; false: plain text
  // Bytes of the text, as ascending and disjoint ranges, in which no control token is read: a token
  // that covers one of them is no control token. Control tokens are the special tokens, and those
  // added tokens that have a character other than letters, digits and white space.
  std::vector<ByteRange> contents = {};
};

// Immutable after creation; thread-safe. Encode replaces each maximal subpart of invalid UTF-8 by
// U+FFFD, as the Unicode standard recommends (section 3.9).
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int32_t vocab_size() const = 0;
  // Returns the tokens of `text`. InvalidArgument: a pattern of the tokenizer cannot split the text
  // within the steps and the memory that it may take.
  virtual absl::StatusOr<std::vector<EncodedToken>> Encode(std::string_view text,
                                                           const EncodeOptions& options) const = 0;

  // Returns the bytes that a token appends to a text: " word" for "Ġword" or "▁word", and its own
  // text for a special token. A byte-level token may append a part of a UTF-8 character. Returns
  // nothing for an id that is not in [0, vocab_size()); a model that pads its vocabulary has such
  // ids.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  // Returns the token as the vocabulary writes it ("Ġword"), for display. Returns an empty string
  // for an unused id and for an id that is not in [0, vocab_size()).
  virtual std::string_view Piece(int32_t id) const = 0;
  // Returns the ids below `model_vocab_size` that have no piece, in ascending order: unused ids of
  // this vocabulary, and the padding ids of the model beyond the end of this vocabulary.
  std::vector<int32_t> IdsWithoutPiece(int64_t model_vocab_size) const;
  virtual bool IsSpecial(int32_t id) const = 0;
  // Returns the most bytes of a text that one token can cover. So a text of n bytes has at least n
  // / max_token_bytes tokens. Returns 0 if no bound is known, for example because white space is
  // dropped.
  virtual int64_t max_token_bytes() const = 0;
  // Returns true if decoding from the start of a text drops a leading space of the first token.
  virtual bool strips_leading_space() const = 0;

  // Decodes a whole text: joins the TokenBytes, drops a leading space if strips_leading_space(),
  // and replaces invalid UTF-8 by U+FFFD. Ids that are out of range are skipped.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // What is put around an input.
  virtual const InputFrame& frame() const = 0;
  virtual int32_t bos_id() const = 0;  // -1: none
  // Returns all ids that end a generation, sorted: EOS and the other end-of-turn tokens of the
  // model.
  virtual const std::vector<int32_t>& end_ids() const = 0;
};

}  // namespace quire::text
