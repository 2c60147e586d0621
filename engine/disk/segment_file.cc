#include "engine/disk/segment_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <xxhash.h>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "files/byte_codec.h"
#include "files/file_io.h"

namespace quire::engine {
namespace {

constexpr std::string_view kFileMagic = "quire-kv";
constexpr std::string_view kEntryMagic = "kv-entry";
constexpr uint64_t kVersion = 1;
constexpr std::string_view kNameBegin = "kv-";
constexpr std::string_view kNameEnd = ".segment";
constexpr size_t kIdDigits = 16;

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The bytes of an entry before its own checksum.
std::string EncodedEntry(const SegmentFile::Entry& entry) {
  files::ByteWriter writer;
  writer.AddSized(TextOfKey(entry.key));
  writer.Add(entry.sum.low);
  writer.Add(entry.sum.high);
  return std::string(kEntryMagic) + writer.Take();
}

uint64_t SumOfEntry(std::string_view bytes, uint64_t place) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), place);
}

std::string WithSum(std::string bytes, uint64_t place) {
  files::ByteWriter writer;
  writer.Add(SumOfEntry(bytes, place));
  return bytes + writer.Take();
}

// Returns false unless the bytes are those of an entry at this place.
bool ReadEntry(std::string_view bytes, uint64_t place, SegmentFile::Entry& entry) {
  files::ByteReader reader(bytes.substr(kEntryMagic.size()));
  const std::string_view key = reader.Sized();
  entry.sum.low = reader.Number();
  entry.sum.high = reader.Number();
  if (!reader.ok() || key.size() != entry.key.size()) return false;
  std::ranges::copy(key, reinterpret_cast<char*>(entry.key.data()));
  const std::string wanted = WithSum(EncodedEntry(entry), place);
  return bytes.starts_with(wanted);
}

}  // namespace

std::string SegmentFile::NameOf(uint64_t id) {
  return absl::StrFormat("%s%016x%s", std::string(kNameBegin), id, std::string(kNameEnd));
}

uint64_t SegmentFile::IdOf(std::string_view name) {
  if (name.size() != kNameBegin.size() + kIdDigits + kNameEnd.size()) return 0;
  uint64_t id = 0;
  const char* const begin = name.data() + kNameBegin.size();
  std::from_chars(begin, begin + kIdDigits, id, 16);
  return NameOf(id) == name ? id : 0;
}

uint64_t SegmentFile::PlaceOf(int64_t slot) const {
  const uint64_t place[2] = {id_, static_cast<uint64_t>(slot)};
  return XXH3_64bits(place, sizeof(place));
}

RecordSum SegmentFile::SumOf(int64_t slot, std::span<const std::byte> record) const {
  const XXH128_hash_t sum =
      XXH3_128bits_withSeed(record.data(), record.size(), static_cast<XXH64_hash_t>(PlaceOf(slot)));
  return {.low = sum.low64, .high = sum.high64};
}

std::vector<std::byte> SegmentFile::Header() const {
  files::ByteWriter writer;
  writer.Add(kVersion);
  writer.Add(id_);
  writer.AddSized(TextOfKey(shape_.identity));
  for (const int64_t size : {int64_t{shape_.block_size}, shape_.block_bytes, shape_.num_slots}) {
    writer.Add(static_cast<uint64_t>(size));
  }
  const std::string text = WithSum(std::string(kFileMagic) + writer.Take(), 0);
  std::vector<std::byte> header(SegmentShape::kPage);
  std::memcpy(header.data(), text.data(), text.size());
  return header;
}

absl::StatusOr<std::unique_ptr<SegmentFile>> SegmentFile::Create(
    const files::StateDirectory& directory, const SegmentShape& shape, uint64_t id) {
  std::unique_ptr<SegmentFile> segment(new SegmentFile(shape, id));
  ASSIGN_OR_RETURN(segment->file_, directory.OpenFile(NameOf(id), /*create=*/true));
  if (!files::WriteAt(segment->file_.get(), 0, segment->Header())) {
    const absl::Status status = files::ErrnoStatus(segment->name_, "write");
    directory.Remove(NameOf(id)).IgnoreError();
    return status;
  }
  return segment;
}

absl::StatusOr<std::unique_ptr<SegmentFile>> SegmentFile::Open(
    const files::StateDirectory& directory, const SegmentShape& shape, uint64_t id,
    absl::FunctionRef<void(const Entry&)> on_entry) {
  std::unique_ptr<SegmentFile> segment(new SegmentFile(shape, id));
  ASSIGN_OR_RETURN(segment->file_, directory.OpenFile(NameOf(id), /*create=*/false));
  const std::vector<std::byte> wanted = segment->Header();
  std::vector<std::byte> header(wanted.size());
  if (!files::ReadAt(segment->file_.get(), 0, header) && errno != 0) {
    return files::ErrnoStatus(segment->name_, "read");
  }
  // A file is of no use unless its header is the one that this server would have written.
  if (header != wanted) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: holds blocks of another model or server, or is damaged", segment->name_));
  }
  RETURN_IF_ERROR(segment->ReadTable(on_entry));
  return segment;
}

absl::Status SegmentFile::ReadTable(absl::FunctionRef<void(const Entry&)> on_entry) {
  // The end of a table without slots after it is not there.
  std::vector<std::byte> table(static_cast<size_t>(shape_.num_slots * SegmentShape::kEntryBytes));
  if (!files::ReadAt(file_.get(), SegmentShape::kPage, table) && errno != 0) {
    return files::ErrnoStatus(name_, "read");
  }
  const std::string_view bytes = TextOf(table);
  for (int64_t slot = 0; slot < shape_.num_slots; ++slot) {
    const std::string_view found =
        bytes.substr(static_cast<size_t>(slot * SegmentShape::kEntryBytes),
                     static_cast<size_t>(SegmentShape::kEntryBytes));
    if (std::ranges::all_of(found, [](char byte) { return byte == 0; })) continue;
    next_slot_ = slot + 1;
    Entry entry{.slot = slot};
    if (ReadEntry(found, PlaceOf(slot), entry)) on_entry(entry);
  }
  return absl::OkStatus();
}

absl::StatusOr<SegmentFile::Entry> SegmentFile::Append(const BlockKey& key,
                                                       std::span<const std::byte> record) {
  const int64_t slot = next_slot_;
  const Entry entry{.slot = slot, .key = key, .sum = SumOf(slot, record)};
  const std::string encoded = WithSum(EncodedEntry(entry), PlaceOf(slot));
  static_assert(kEntryMagic.size() + 8 + sizeof(BlockKey) + 3 * 8 <= SegmentShape::kEntryBytes);
  if (!files::WriteAt(file_.get(), shape_.slots_begin() + slot * shape_.slot_bytes(), record) ||
      !files::WriteAt(file_.get(), SegmentShape::kPage + slot * SegmentShape::kEntryBytes,
                      std::as_bytes(std::span(encoded)))) {
    return files::ErrnoStatus(name_, "write");
  }
  ++next_slot_;
  return entry;
}

absl::StatusOr<bool> SegmentFile::Read(const Entry& entry, std::span<std::byte> record) const {
  const int64_t place = shape_.slots_begin() + entry.slot * shape_.slot_bytes();
  if (!files::ReadAt(file_.get(), place, record)) {
    if (errno != 0) return files::ErrnoStatus(name_, "read");
    return false;
  }
  return SumOf(entry.slot, record) == entry.sum;
}

absl::Status SegmentFile::Clear(int64_t slot) {
  // Not all zeros: such a slot would be written again, though a reader may still have its entry.
  std::array<std::byte, SegmentShape::kEntryBytes> none{};
  none[0] = std::byte{1};
  if (files::WriteAt(file_.get(), SegmentShape::kPage + slot * SegmentShape::kEntryBytes, none)) {
    return absl::OkStatus();
  }
  return files::ErrnoStatus(name_, "write");
}

}  // namespace quire::engine
