#pragma once

// Writes the tokenizer of a Hugging Face directory as the metadata of a GGUF file.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "files/gguf_values.h"
#include "files/model_files.h"

namespace quire::convert {

// Adds tokenizer.* to `values`, and nothing on an error: byte-level BPE as "gpt2",
// SentencePiece-BPE as "llama", both as tokenizer_loader.h and llama.cpp read them. general.name
// should be among the values already: by it readers know that Phi-3's tokens strip the white space
// after them.
//
// tokenizer.ggml.pre is chosen by trying: it is the first name whose tokenizer, read back from
// these values, gives the same tokens as the directory's for texts that are hard to split and for
// every token of the vocabulary. The tokenizer read back is then compared with the directory's in
// the rest: special tokens, ends, decoded text.
//
// `vocab_size` is the number of the embedding's rows. Ids without a token become "[PAD<id>]",
// unused; added tokens without a row are left out.
//
// InvalidArgument names a property that GGUF, or llama.cpp's tokenizers, lack, if ids of plain text
// would differ or a generation would not end. `warnings` gets the other losses: Unicode
// normalization, the effect of added tokens on the text beside them.
absl::Status TokenizerToGguf(const files::OpenedModel& model, int64_t vocab_size,
                             files::GgufValues& values, std::vector<std::string>& warnings);

}  // namespace quire::convert
