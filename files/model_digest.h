#pragma once

// The identity of a model's files.

#include <string>

#include "files/model_files.h"

namespace quire::files {

// Returns SHA-256, in 64 hexadecimal digits, over the metadata of a GGUF file, or the configuration
// and tokenizer files of a Hugging Face directory, and over the name, the type, the shape, the size
// and the middle 4 KiB of every tensor; of more than 4096 tensors, fewer bytes of each, so that all
// are at most 16 MiB. The tensors count in the order of their names, so how a directory is divided
// into shards does not matter. A chat template that replaces the model's counts, too.
//
// The digest tells models apart. It is no proof of integrity, because most bytes of the tensors do
// not count. So it takes milliseconds whatever the size of the model.
std::string ModelDigest(const OpenedModel& model);

}  // namespace quire::files
