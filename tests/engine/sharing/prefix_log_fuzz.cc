// Reads any bytes as the log of named prefixes: as the whole file, and as records of it. Expects an
// error or prefixes, never a crash.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <unistd.h>

#include "engine/sharing/prefix_log.h"
#include "files/record_log.h"
#include "files/state_directory.h"

// Takes the place of the C library's, since the disk is no part of this.
extern "C" int fdatasync(int) { return 0; }

namespace {

using quire::engine::PrefixLog;
using quire::files::RecordLog;
using quire::files::StateDirectory;

const std::string& Directory() {
  static const std::string directory = [] {
    std::string pattern = "/tmp/quire_prefix_log_fuzz_XXXXXX";
    std::string made = ::mkdtemp(pattern.data());
    static const std::string* const at_end = new std::string(made);
    std::atexit([] {
      for (const char* file : {"/named.log", "/named.log.new", "/named.log.damaged", "/lock"}) {
        ::unlink((*at_end + file).c_str());
      }
      ::rmdir(at_end->c_str());
    });
    return made;
  }();
  return directory;
}

void OpenLog(const StateDirectory& directory) {
  auto log = PrefixLog::Open(directory, "m", {.max_bytes = 1 << 20, .vocab_size = 300});
  if (!log.ok()) return;
  for (const auto& prefix : (*log)->TakeSaved()) {
    if (prefix.content->ids.empty() || prefix.pin >= (*log)->next_pin()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto directory = *StateDirectory::Open(Directory());
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string path = Directory() + "/named.log";
  std::ofstream(path, std::ios::binary) << bytes;
  OpenLog(*directory);
  // A record ends with a line. Its kind and key are its first two bytes.
  ::unlink(path.c_str());
  {
    auto log = *RecordLog::Open(*directory, "named.log", "prefixes of model m", /*room=*/0,
                                [](const RecordLog::Record&) { return absl::OkStatus(); });
    for (size_t begin = 0; begin < size;) {
      const size_t end = std::min(size, bytes.find('\n', begin));
      const std::string_view line = bytes.substr(begin, end - begin);
      const auto byte = [&](size_t i) {
        return static_cast<uint8_t>(line.size() > i ? line[i] : 0);
      };
      if (!log->Append({.kind = byte(0),
                        .key = byte(1),
                        .body = line.substr(std::min(line.size(), size_t{2}))})
               .ok())
        std::abort();
      begin = end + 1;
    }
  }
  OpenLog(*directory);
  return 0;
}
