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
// should already contain general.name, because from that name readers know that the tokens of Phi-3
// strip the white space after them.
//
// For "gpt2", the value of tokenizer.ggml.pre is found by trying the known names. For each name a
// tokenizer is read back from the values. The first name is chosen whose tokenizer gives the same
// tokens as the directory's for texts that are hard to split and for the tokens of the vocabulary.
// That tokenizer is then compared with the directory's in special tokens, ends and decoded text.
//
// `vocab_size` is the number of rows of the embedding. An id without a token becomes the unused
// token "[PAD<id>]". Added tokens without a row are left out.
//
// InvalidArgument names a property that GGUF, or llama.cpp's tokenizers, lack, if without it the
// ids of plain text would differ or a generation would not end. Other losses are added to
// `warnings`: Unicode normalization, and the effect of added tokens on the text beside them.
absl::Status TokenizerToGguf(const files::OpenedModel& model, int64_t vocab_size,
                             files::GgufValues& values, std::vector<std::string>& warnings);

}  // namespace quire::convert
