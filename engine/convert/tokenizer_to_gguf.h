#pragma once

// The tokenizer of a Hugging Face directory, as the metadata of a GGUF file has it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "engine/weights/gguf_values.h"
#include "engine/weights/model_files.h"

namespace quire::engine {

// Adds tokenizer.* to `values`, and nothing on an error: byte-level BPE as "gpt2",
// SentencePiece-BPE as "llama", both as tokenizer_loader.h and llama.cpp read them. general.name
// should be among the values before: it tells the readers that Phi-3's tokens strip the white space
// behind them.
//
// tokenizer.ggml.pre is chosen by trying: it is the first name whose tokenizer, read back from
// these very values, makes the tokens that the directory's makes, of texts that are hard to split
// and of every token of the vocabulary. What is read back is then held against the directory's
// tokenizer in the rest: special tokens, ends, decoded text.
//
// `vocab_size` are the embedding's rows: ids without a token become "[PAD<id>]", unused; added
// tokens without a row are left out.
//
// InvalidArgument names what GGUF, or llama.cpp's tokenizers, cannot say, where ids of plain text
// would differ or a generation would not end. `warnings` gets the rest of what is lost: Unicode
// normalization, what added tokens do to the text beside them.
absl::Status TokenizerToGguf(const OpenedModel& model, int64_t vocab_size, GgufValues& values,
                             std::vector<std::string>& warnings);

}  // namespace quire::engine
