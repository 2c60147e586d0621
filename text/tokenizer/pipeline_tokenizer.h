#pragma once

// One tokenizer for byte-level BPE (the GPT-2 family), SentencePiece-BPE and Unigram. Its stages
// are filled from a Hugging Face tokenizer.json (tokenizer_json.h) or from the metadata of a GGUF
// file (gguf_vocabulary.h).

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/word_model.h"

namespace quire::text {

struct VocabularyEntry {
  std::string piece;  // the token as the vocabulary writes it; empty: no token has this id
  std::string bytes;  // the bytes that the token stands for in a text
  bool special = false;
};

// The stages, in the order of use. Encode first splits off the added tokens and normalizes the text
// between them. From the normalized text it splits off the tokens of normalized_added_tokens, and
// splits the rest into words. The model then splits each word into tokens.
struct TokenizerParts {
  AddedTokens added_tokens;
  Normalizer normalizer;
  AddedTokens normalized_added_tokens;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const WordModel> model;
  std::vector<VocabularyEntry> vocabulary;  // by id
  InputFrame frame;
  int32_t bos_id = -1;
  std::vector<int32_t> end_ids;
  bool strips_leading_space = false;
};

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);

  int32_t vocab_size() const override { return static_cast<int32_t>(parts_.vocabulary.size()); }
  absl::StatusOr<std::vector<EncodedToken>> Encode(std::string_view text,
                                                   const EncodeOptions& options) const override;
  std::string_view TokenBytes(int32_t id) const override;
  std::string_view Piece(int32_t id) const override;
  bool IsSpecial(int32_t id) const override;
  int64_t max_token_bytes() const override { return max_token_bytes_; }
  bool strips_leading_space() const override { return parts_.strips_leading_space; }
  const InputFrame& frame() const override { return parts_.frame; }
  int32_t bos_id() const override { return parts_.bos_id; }
  const std::vector<int32_t>& end_ids() const override { return parts_.end_ids; }

 private:
  struct Scratch;
  absl::Status EncodeBetweenTokens(const TextPart& part, const EncodeOptions& options,
                                   Scratch& scratch, std::vector<EncodedToken>& out) const;
  absl::Status EncodeWords(const TextPart& part, std::span<const ByteRange> contents,
                           Scratch& scratch, std::vector<EncodedToken>& out) const;
  // Appends the tokens of `text`, which the model has made a control token though it has bytes of
  // `contents`: those of its first character, and those of the rest.
  absl::Status EncodeApart(const TextPart& text, std::span<const ByteRange> contents,
                           std::vector<EncodedToken>& out) const;
  // Returns true if a content spells the control token `id`, which the model found in it.
  bool IsForged(int32_t id, std::string_view text) const;
  const VocabularyEntry* Entry(int32_t id) const;  // null: out of range

  const TokenizerParts parts_;
  const std::vector<bool> is_control_;  // by id
  const int64_t max_token_bytes_;
};

}  // namespace quire::text
