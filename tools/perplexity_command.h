#pragma once

// `quire-inspect --perplexity`: from a model and a text file to the number.

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"

#include "engine/weights/model_files.h"
#include "tools/perplexity.h"

namespace quire::tools {

struct PerplexityCommand {
  std::string text_path;
  PerplexityOptions options;
  int64_t threads = 0;  // as quire-server's flags
  std::string cpu_isa = "auto";
  std::string kv_dtype = "auto";
  bool json = false;
};

// One line of `name=value` pairs, or with `json` one object, and its newline. Lines of progress go
// to `err`. InvalidArgument names the option or the file to change.
absl::StatusOr<std::string> RunPerplexity(const engine::OpenedModel& model,
                                          const PerplexityCommand& command, std::ostream& err);

}  // namespace quire::tools
