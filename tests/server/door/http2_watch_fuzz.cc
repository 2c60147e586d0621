// Feeds an Http2Watch the bytes of both directions in pieces of any size. Checks that it does not
// crash, keeps its limits, and leaves no bytes counted at the end.

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "server/door/http2_watch.h"

namespace quire::server::door {
namespace {

constexpr Http2Limits kLimits = {.header_block_bytes = 256,
                                 .header_list_bytes = 1024,
                                 .request_list_bytes = 512,
                                 .control_frame_bytes = 64,
                                 .message_bytes = 64,
                                 .connection_bytes = 512,
                                 .total_bytes = 1024,
                                 .streams = 4,
                                 .resets = {.per_second = 1, .burst = 8}};

void Run(std::span<const uint8_t> input) {
  DoorCounters counters;
  {
    Http2Watch watch(
        kLimits,
        [](const RequestHead& head) {
          return head.path.size() % 3 == 2 ? std::optional(Refusal{.code = 16}) : std::nullopt;
        },
        counters);
    Clock::time_point now{};
    std::string out;
    watch.FromClient({reinterpret_cast<const uint8_t*>(kPreface.data()), kPreface.size()}, now,
                     out);
    // One byte before each piece gives the direction and the length of the piece.
    while (!input.empty() && !watch.verdict()) {
      const uint8_t how = input[0];
      input = input.subspan(1);
      const auto piece = input.first(std::min<size_t>(how & 0x3f, input.size()));
      input = input.subspan(piece.size());
      now += std::chrono::milliseconds(how);
      out.clear();
      if ((how & 0x40) == 0) {
        const size_t read = watch.FromClient(piece, now, out);
        QUIRE_CHECK(read == piece.size() || watch.verdict()) << "bytes that nobody read";
      } else {
        const bool spliced = watch.FromServer(piece, now, out);
        QUIRE_CHECK(spliced || out.empty()) << "bytes that nobody sends";
      }
      if ((how & 0x80) != 0) watch.Expire(now);
      watch.TakeForClient();
      watch.TakeForServer();
      QUIRE_CHECK(watch.unfinished_bytes() <= kLimits.connection_bytes + 256)
          << watch.unfinished_bytes();
      QUIRE_CHECK(watch.num_streams() <= kLimits.streams) << watch.num_streams();
      QUIRE_CHECK(counters.unfinished_bytes == static_cast<int64_t>(watch.unfinished_bytes()))
          << counters.unfinished_bytes;
    }
  }
  QUIRE_CHECK(counters.unfinished_bytes == 0) << counters.unfinished_bytes;
}

}  // namespace
}  // namespace quire::server::door

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::server::door::Run({data, size});
  return 0;
}
