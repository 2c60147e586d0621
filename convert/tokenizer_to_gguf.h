#pragma once

// Writes the tokenizer of a Hugging Face directory as the metadata of a GGUF file.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "files/gguf_values.h"
#include "files/model_files.h"

namespace quire::convert {

// Adds tokenizer.* to `values`; on an error adds nothing. Byte-level BPE is written as "gpt2", and
// SentencePiece-BPE as "llama", in the form that tokenizer_loader.h and llama.cpp read. `values`
// should already contain general.name, because readers use that name to recognise Phi-3, whose
// tokens strip the white space after them.
//
// For "gpt2", the value of tokenizer.ggml.pre is found by trying the known names. For each name, a
// tokenizer is read back from the values. This tokenizer encodes texts that are hard to split, and
// the tokens of the vocabulary. If the ids are the same as those of the tokenizer of the directory,
// the name is chosen. The two tokenizers are then compared in special tokens, ends and decoded
// text.
//
// `vocab_size` is the number of rows of the embedding. An id without a token becomes the unused
// token "[PAD<id>]". Added tokens without a row are left out.
//
// Some properties of a tokenizer cannot be written, because GGUF or the tokenizers of llama.cpp do
// not have them. If without such a property the ids of plain text would differ or a generation
// would not end, returns an InvalidArgument error that names the property. Other losses are added
// to `warnings`, for example Unicode normalization, and the effect of added tokens on the text
// beside them.
absl::Status TokenizerToGguf(const files::OpenedModel& model, int64_t vocab_size,
                             files::GgufValues& values, std::vector<std::string>& warnings);

}  // namespace quire::convert
