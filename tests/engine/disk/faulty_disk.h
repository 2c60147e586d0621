#pragma once

// Takes the place of the C library's pread, pwrite, fdatasync and fsync in a test binary. Nothing
// is synced, and the others may fail or wait.

#include <atomic>
#include <functional>

namespace quire::testing {

struct FaultyDisk {
  // If not 0, reads or writes fail with this errno.
  std::atomic<int> read_error = 0;
  std::atomic<int> write_error = 0;
  std::atomic<int> sync_error = 0;
  // While true, reads or writes wait.
  std::atomic<bool> reads_hang = false;
  std::atomic<bool> writes_hang = false;
  std::atomic<int> num_hanging = 0;
  // Called in each read. Only where one thread reads.
  std::function<void()> on_read;
};

FaultyDisk& Disk();

// Makes the disk a good one again when a test ends.
class HealsDisk {
 public:
  HealsDisk() = default;
  HealsDisk(const HealsDisk&) = delete;
  HealsDisk& operator=(const HealsDisk&) = delete;
  ~HealsDisk() { Heal(); }
  static void Heal() {
    Disk().read_error = Disk().write_error = Disk().sync_error = 0;
    Disk().reads_hang = Disk().writes_hang = false;
    Disk().on_read = nullptr;
  }
};

}  // namespace quire::testing
