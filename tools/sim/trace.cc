#include "tools/sim/trace.h"

#include <algorithm>

#include "base/status_macros.h"
#include "tools/sim/random.h"

namespace quire::tools {

std::vector<int32_t> MakeTokens(const TraceRequest& request, int32_t block_tokens) {
  std::vector<int32_t> tokens;
  tokens.reserve(request.prompt_tokens + request.output_tokens);
  for (const uint64_t block : request.blocks) {
    const int64_t end = std::min<int64_t>(std::ssize(tokens) + block_tokens, request.prompt_tokens);
    for (uint64_t state = Mix(block); std::ssize(tokens) < end;) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      tokens.push_back(static_cast<int32_t>(state >> 33));
    }
  }
  return tokens;
}

absl::StatusOr<std::vector<TraceRequest>> ReadAll(Trace& trace) {
  std::vector<TraceRequest> requests;
  TraceRequest request;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, trace.Next(&request));
    if (!more) return requests;
    requests.push_back(std::move(request));
    request = {};
  }
}

}  // namespace quire::tools
