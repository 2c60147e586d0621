#pragma once

// A small tokenizer for tests. A test chooses the tokenizer's pieces.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace quire::testing {

// Ids 0..255 are the bytes. The given pieces follow in order, and then the special tokens "<s>" and
// "</s>".
class FakeTokenizer : public text::Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> pieces = {});

  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  // Takes the longest token that fits, from left to right. Does not parse special tokens.
  absl::StatusOr<std::vector<text::EncodedToken>> Encode(
      std::string_view text, const text::EncodeOptions& options) const override;
  // Returns an empty string for an id past the end, such as an id of a model's padding.
  std::string_view TokenBytes(int32_t id) const override {
    return id < vocab_size() ? std::string_view(tokens_[id]) : std::string_view();
  }
  std::string_view Piece(int32_t id) const override { return TokenBytes(id); }
  bool IsSpecial(int32_t id) const override { return id == bos_id() || id == eos_id(); }
  int64_t max_token_bytes() const override;
  bool strips_leading_space() const override { return false; }
  const text::InputFrame& frame() const override { return frame_; }
  void set_frame(text::InputFrame frame) { frame_ = std::move(frame); }
  int32_t bos_id() const override { return vocab_size() - 2; }
  int32_t eos_id() const { return vocab_size() - 1; }
  const std::vector<int32_t>& end_ids() const override { return end_ids_; }

 private:
  text::InputFrame frame_;  // puts BOS before a prompt
  std::vector<std::string> tokens_;
  std::vector<int32_t> end_ids_;
};

}  // namespace quire::testing
