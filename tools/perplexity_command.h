#pragma once

// `quire-inspect --perplexity`: computes the perplexity of a model on a text file.

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"

#include "files/model_files.h"
#include "tools/perplexity.h"

namespace quire::tools {

struct PerplexityCommand {
  std::string text_path;
  PerplexityOptions options;
  // threads, cpu_isa and kv_dtype are as in quire-server's flags.
  int64_t threads = 0;
  std::string cpu_isa = "auto";
  std::string kv_dtype = "auto";
  bool json = false;
};

// Returns one line: `name=value` pairs, or a JSON object if command.json is set. Lines of progress
// are written to `err`. The message of an InvalidArgument names the flag or the file to change.
absl::StatusOr<std::string> RunPerplexity(const files::OpenedModel& model,
                                          const PerplexityCommand& command, std::ostream& err);

}  // namespace quire::tools
