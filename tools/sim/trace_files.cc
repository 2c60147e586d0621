// Readers of published traces.

#include <cstdio>
#include <fstream>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "base/math.h"
#include "base/status_macros.h"
#include "tools/sim/random.h"
#include "tools/sim/trace.h"

namespace quire::tools {
namespace {

// No real prompt is longer; a longer one would exhaust the memory.
constexpr int64_t kMostTokens = int64_t{1} << 24;

class Lines {
 public:
  explicit Lines(const std::string& path) : path_(path), stream_(path) {}
  bool is_open() const { return stream_.is_open(); }
  // Reads the next line that is not empty.
  bool Next(std::string* line) {
    while (std::getline(stream_, *line)) {
      ++number_;
      if (!line->empty() && line->back() == '\r') line->pop_back();
      if (!line->empty()) return true;
    }
    return false;
  }
  absl::Status Error(std::string_view text) const {
    return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s", path_, number_, text));
  }

 private:
  const std::string path_;
  std::ifstream stream_;
  int64_t number_ = 0;
};

absl::Status CannotRead(const std::string& path) {
  return absl::NotFoundError(
      absl::StrFormat("%s: cannot be read; want a file of a trace, see quire-sim --help", path));
}

class MooncakeTrace final : public Trace {
 public:
  explicit MooncakeTrace(const std::string& path) : lines_(path) {}
  bool is_open() const { return lines_.is_open(); }
  int32_t block_tokens() const override { return 512; }

  absl::StatusOr<bool> Next(TraceRequest* request) override {
    std::string line;
    if (!lines_.Next(&line)) return false;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto integer = [&](const char* name) -> int64_t {
      const auto it = json.is_object() ? json.find(name) : json.end();
      return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
    };
    const int64_t timestamp = integer("timestamp");
    request->prompt_tokens = integer("input_length");
    request->output_tokens = std::max<int64_t>(integer("output_length"), 1);
    if (timestamp < 0 || request->prompt_tokens < 1 || request->prompt_tokens > kMostTokens ||
        request->output_tokens > kMostTokens || !json.contains("hash_ids") ||
        !json["hash_ids"].is_array()) {
      return lines_.Error(
          "want {\"timestamp\": MS, \"input_length\": N, \"output_length\": N, \"hash_ids\": "
          "[..]}, with lengths of 1 .. 2^24");
    }
    request->blocks.clear();
    for (const auto& id : json["hash_ids"]) {
      if (!id.is_number_unsigned()) return lines_.Error("hash_ids: want integers >= 0");
      request->blocks.push_back(id.get<uint64_t>());
    }
    if (std::ssize(request->blocks) != base::CeilDiv(request->prompt_tokens, int64_t{512})) {
      return lines_.Error("hash_ids: want one for each 512 tokens of input_length, rounded up");
    }
    const double arrival = static_cast<double>(timestamp) / 1e3;
    if (arrival < last_) return lines_.Error("timestamp: want lines in the order of arrival");
    request->arrival_seconds = last_ = arrival;
    return true;
  }

 private:
  Lines lines_;
  double last_ = 0.0;
};

class AzureTrace final : public Trace {
 public:
  AzureTrace(const std::string& path, uint64_t seed) : lines_(path), random_(seed) {}
  bool is_open() const { return lines_.is_open(); }
  int32_t block_tokens() const override { return kBlockTokens; }

  absl::StatusOr<bool> Next(TraceRequest* request) override {
    std::string line;
    if (!lines_.Next(&line)) return false;
    if (line.starts_with("TIMESTAMP") && !lines_.Next(&line)) return false;
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    std::string error;
    absl::Time time;
    if (fields.size() != 3 || !absl::ParseTime("%Y-%m-%d %H:%M:%E*S", fields[0], &time, &error) ||
        !absl::SimpleAtoi(fields[1], &request->prompt_tokens) ||
        !absl::SimpleAtoi(fields[2], &request->output_tokens) || request->prompt_tokens < 0 ||
        request->prompt_tokens > kMostTokens || request->output_tokens < 0 ||
        request->output_tokens > kMostTokens) {
      return lines_.Error("want TIMESTAMP,ContextTokens,GeneratedTokens with lengths to 2^24");
    }
    if (!begin_) begin_ = time;
    const double arrival = absl::ToDoubleSeconds(time - *begin_);
    if (arrival < last_) return lines_.Error("TIMESTAMP: want lines in the order of arrival");
    request->arrival_seconds = last_ = arrival;
    request->prompt_tokens = std::max<int64_t>(request->prompt_tokens, 1);
    request->output_tokens = std::max<int64_t>(request->output_tokens, 1);
    Join(request);
    return true;
  }

 private:
  static constexpr int32_t kBlockTokens = 64;
  static constexpr double kLeastWait = 10.0;
  static constexpr double kMostWait = 900.0;
  static constexpr int32_t kMostSearched = 64;

  struct Context {
    double end_seconds = 0.0;
    std::vector<uint64_t> blocks;
  };

  void Join(TraceRequest* request) {
    request->blocks.clear();
    auto it = contexts_.upper_bound(request->prompt_tokens);
    const bool is_new = random_.Uniform() < 0.5;
    for (int32_t i = 0; !is_new && i < kMostSearched && it != contexts_.begin(); ++i) {
      --it;
      if (it->first * 4 < request->prompt_tokens) break;
      const double wait = request->arrival_seconds - it->second.end_seconds;
      if (wait > kMostWait) {
        it = contexts_.erase(it);
      } else if (wait >= kLeastWait) {
        request->blocks = std::move(it->second.blocks);
        contexts_.erase(it);
        break;
      }
    }
    const int64_t context = request->prompt_tokens + request->output_tokens;
    std::vector<uint64_t> blocks = request->blocks;
    while (std::ssize(blocks) < base::CeilDiv(context, int64_t{kBlockTokens})) {
      blocks.push_back(next_block_++);
    }
    request->blocks.assign(blocks.begin(), blocks.begin() + base::CeilDiv(request->prompt_tokens,
                                                                          int64_t{kBlockTokens}));
    // The next turn has other tokens in the blocks in which this prompt and this context end.
    if (request->prompt_tokens % kBlockTokens != 0) request->blocks.back() = next_block_++;
    if (context % kBlockTokens != 0) blocks.pop_back();
    contexts_.emplace(
        context, Context{.end_seconds = request->arrival_seconds, .blocks = std::move(blocks)});
  }

  Lines lines_;
  Random random_;
  std::optional<absl::Time> begin_;
  double last_ = 0.0;
  uint64_t next_block_ = 0;
  std::multimap<int64_t, Context> contexts_;  // by tokens
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trace>> OpenMooncake(const std::string& path) {
  auto trace = std::make_unique<MooncakeTrace>(path);
  if (!trace->is_open()) return CannotRead(path);
  return trace;
}

absl::StatusOr<std::unique_ptr<Trace>> OpenAzure(const std::string& path, uint64_t seed) {
  auto trace = std::make_unique<AzureTrace>(path, seed);
  if (!trace->is_open()) return CannotRead(path);
  return trace;
}

}  // namespace quire::tools
