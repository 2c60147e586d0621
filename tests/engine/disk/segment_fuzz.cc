// Reads a segment of the KV cache with any bytes changed, or with any bytes as its table. Expects
// that a block is read as it was written or not at all.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>
#include <vector>

#include "engine/disk/segment_file.h"
#include "files/state_directory.h"

namespace {

using quire::engine::BlockKey;
using quire::engine::SegmentFile;
using quire::engine::SegmentShape;
using quire::files::StateDirectory;

constexpr SegmentShape kShape = {.block_size = 4, .block_bytes = 64, .num_slots = 4};
constexpr uint64_t kId = 1;

const std::string& Folder() {
  static const std::string folder = [] {
    std::string pattern = "/tmp/quire_segment_fuzz_XXXXXX";
    std::string made = ::mkdtemp(pattern.data());
    static const std::string* const at_end = new std::string(made);
    std::atexit([] {
      for (const std::string& file : {"/" + SegmentFile::NameOf(kId), std::string("/lock")}) {
        ::unlink((*at_end + file).c_str());
      }
      ::rmdir(at_end->c_str());
    });
    return made;
  }();
  return folder;
}

std::string Path() { return Folder() + "/" + SegmentFile::NameOf(kId); }

std::vector<std::byte> RecordOf(int i) {
  std::vector<std::byte> record(static_cast<size_t>(kShape.record_bytes()));
  for (size_t k = 0; k < record.size(); ++k) record[k] = static_cast<std::byte>(i * 7 + k);
  return record;
}

BlockKey KeyOf(int i) {
  BlockKey key{};
  key.fill(static_cast<uint8_t>(i));
  return key;
}

// A segment with two blocks.
std::string Image(const StateDirectory& directory) {
  auto segment = *SegmentFile::Create(directory, kShape, kId);
  for (const int i : {1, 2}) {
    if (!segment->Append(KeyOf(i), RecordOf(i)).ok()) std::abort();
  }
  std::ifstream file(Path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto directory = *StateDirectory::Open(Folder());
  static const std::string image = Image(*directory);
  if (size < 3) return 0;
  std::string bytes = image;
  const auto number = [&](size_t i) { return size_t{data[i]} << 8 | data[i + 1]; };
  if (data[0] % 2 == 0) {
    // A length, and then places and what to change there.
    for (size_t i = 3; i + 2 < size; i += 3) {
      bytes[number(i) % bytes.size()] ^= static_cast<char>(data[i + 2]);
    }
    bytes.resize(number(1) % (bytes.size() + 1));
  } else {
    const size_t table = std::min<size_t>(size - 1, SegmentShape::kPage);
    std::copy_n(data + 1, table, bytes.begin() + SegmentShape::kPage);
  }
  std::ofstream(Path(), std::ios::binary | std::ios::trunc) << bytes;
  std::vector<SegmentFile::Entry> entries;
  auto segment = SegmentFile::Open(
      *directory, kShape, kId, [&](const SegmentFile::Entry& entry) { entries.push_back(entry); });
  if (!segment.ok()) return 0;
  std::vector<std::byte> record(static_cast<size_t>(kShape.record_bytes()));
  for (const SegmentFile::Entry& entry : entries) {
    if (entry.slot < 0 || entry.slot >= kShape.num_slots) std::abort();
    const auto whole = (*segment)->Read(entry, record);
    if (!whole.ok() || !*whole) continue;
    if (record != RecordOf(1) && record != RecordOf(2)) std::abort();
  }
  if (!(*segment)->is_full() && !(*segment)->Append(KeyOf(3), RecordOf(3)).ok()) std::abort();
  return 0;
}
