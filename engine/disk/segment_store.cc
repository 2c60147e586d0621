#include "engine/disk/segment_store.h"

#include <algorithm>
#include <array>
#include <random>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "files/byte_codec.h"

namespace quire::engine {
namespace {

constexpr char kStoreFile[] = "kv.store";
constexpr std::string_view kStoreIdentity = "K and V of blocks";

constexpr int64_t kSegmentBytes = 64 << 20;
// A large store has larger segments, since each one takes a descriptor.
constexpr int64_t kMostSegments = 16;
constexpr int64_t kLeastSegments = 4;
// The part of a removed segment that is written again at the most.
constexpr int64_t kKeptShare = 4;

// Returns the parts of a record that stand before K and V.
std::array<std::span<const std::byte>, 3> PartsBefore(const BlockKey& key, const BlockKey& parent,
                                                      std::span<const int32_t> tokens) {
  return {std::as_bytes(std::span(key)), std::as_bytes(std::span(parent)), std::as_bytes(tokens)};
}

BlockKey NewSecret() {
  std::random_device random;
  BlockKey secret;
  for (uint8_t& byte : secret) byte = static_cast<uint8_t>(random());
  return secret;
}

SegmentShape ShapeOf(const SegmentStoreConfig& config) {
  SegmentShape shape{.block_size = config.block_size, .block_bytes = config.block_bytes};
  const int64_t bytes = std::max(config.max_bytes / kMostSegments,
                                 std::min(kSegmentBytes, config.max_bytes / kLeastSegments));
  // The table of few slots takes a page.
  const int64_t left = bytes - 2 * SegmentShape::kPage;
  shape.num_slots = std::max<int64_t>(0, left / (shape.slot_bytes() + SegmentShape::kEntryBytes));
  return shape;
}

}  // namespace

SegmentStore::SegmentStore(const files::StateDirectory& directory, const SegmentStoreConfig& config)
    : directory_(directory), contents_(config.contents), shape_(ShapeOf(config)) {
  record_.resize(static_cast<size_t>(shape_.record_bytes()));
}

absl::StatusOr<std::unique_ptr<SegmentStore>> SegmentStore::Open(
    const files::StateDirectory& directory, const SegmentStoreConfig& given) {
  SegmentStoreConfig config = given;
  const SegmentShape sizes{.block_size = config.block_size, .block_bytes = config.block_bytes};
  config.max_bytes = std::min(config.max_bytes, kMostBlocks * sizes.slot_bytes());
  std::unique_ptr<SegmentStore> store(new SegmentStore(directory, config));
  const SegmentShape& shape = store->shape_;
  if (shape.num_slots == 0) {
    const int64_t least = kLeastSegments * (sizes.slot_bytes() + 3 * SegmentShape::kPage);
    return absl::InvalidArgumentError(absl::StrFormat(
        "kv_disk_mib: want at least %d, for %d blocks of %d bytes, got %d MiB: raise it, or leave "
        "it out",
        (least + (1 << 20) - 1) >> 20, kLeastSegments, config.block_bytes, given.max_bytes >> 20));
  }
  // While a segment is removed, a part of it is there twice.
  store->max_segments_ = (config.max_bytes - shape.file_bytes() / kKeptShare) / shape.file_bytes();
  RETURN_IF_ERROR(store->ReadStoreFile());
  base::Sha256 identity;
  identity.Add(TextOfKey(store->secret_));
  identity.AddSized(store->contents_);
  store->shape_.identity = identity.Finish();
  RETURN_IF_ERROR(store->OpenSegments());
  return store;
}

absl::Status SegmentStore::ReadStoreFile() {
  bool is_there = false;
  ASSIGN_OR_RETURN(store_file_,
                   files::RecordLog::Open(directory_, kStoreFile, kStoreIdentity, /*room=*/0,
                                          [&](const auto& record) {
                                            files::ByteReader reader(record.body);
                                            const std::string_view secret = reader.Sized();
                                            const uint64_t epoch = reader.Number();
                                            if (!reader.ok() || secret.size() != secret_.size()) {
                                              return absl::OkStatus();
                                            }
                                            std::ranges::copy(secret, secret_.begin());
                                            epoch_ = epoch;
                                            is_there = true;
                                            return absl::OkStatus();
                                          }));
  if (is_there) return absl::OkStatus();
  secret_ = NewSecret();  // which makes all segments foreign
  return WriteStoreFile();
}

absl::Status SegmentStore::WriteStoreFile() {
  files::ByteWriter writer;
  writer.AddSized(TextOfKey(secret_));
  writer.Add(epoch_);
  const std::string all = writer.Take();
  bool is_written = false;
  return store_file_->Replace([&](files::RecordLog::Record& record) {
    record = {.body = all};
    return !std::exchange(is_written, true);
  });
}

absl::Status SegmentStore::OpenSegments() {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, directory_.List());
  std::vector<uint64_t> ids;
  for (const std::string& name : names) {
    if (const uint64_t id = SegmentFile::IdOf(name); id != 0) ids.push_back(id);
  }
  std::ranges::sort(ids);
  for (const uint64_t id : ids) {
    next_id_ = id + 1;
    Segment segment;
    absl::StatusOr<std::unique_ptr<SegmentFile>> file =
        SegmentFile::Open(directory_, shape_, id, [&](const SegmentFile::Entry& entry) {
          segment.keys.push_back(entry.key);
          const base::MutexLock lock(mu_);
          index_[entry.key] = {.segment = id, .slot = entry.slot, .sum = entry.sum};
        });
    if (file.ok() && !segment.keys.empty()) {
      segment.file = *std::move(file);
      segments_.push_back(std::move(segment));
      continue;
    }
    absl::Status status = file.status();
    if (status.ok() || absl::IsNotFound(status)) {  // it has no block, or is foreign
      status = directory_.Remove(SegmentFile::NameOf(id));
    }
    if (status.ok()) continue;
    base::Log(base::LogLevel::kWarning, "engine", "a file of K and V is left out",
              {{"status", status.ToString()}});
  }
  while (std::ssize(segments_) > max_segments_) {
    Segment oldest = std::move(segments_.front());
    segments_.pop_front();
    for (const BlockKey& key : oldest.keys) Forget(key, oldest.file->id());
    RETURN_IF_ERROR(directory_.Remove(SegmentFile::NameOf(oldest.file->id())));
  }
  UpdateBytes();
  return absl::OkStatus();
}

absl::Status SegmentStore::SetEpoch(uint64_t epoch) {
  {
    const base::MutexLock lock(mu_);
    index_.clear();
  }
  epoch_ = epoch;
  // First the epoch, since a removed file may be there again after a loss of power.
  absl::Status status = WriteStoreFile();
  for (const Segment& segment : segments_) {
    status.Update(directory_.Remove(SegmentFile::NameOf(segment.file->id())));
  }
  segments_.clear();
  UpdateBytes();
  return status;
}

bool SegmentStore::Has(const BlockKey& key) const {
  const base::MutexLock lock(mu_);
  return index_.contains(key);
}

int64_t SegmentStore::num_blocks() const {
  const base::MutexLock lock(mu_);
  return static_cast<int64_t>(index_.size());
}

absl::Status SegmentStore::Put(const BlockKey& key, const BlockKey& parent,
                               std::span<const int32_t> tokens) {
  if (Has(key)) return absl::OkStatus();
  std::span<std::byte> bytes(record_);
  for (const std::span<const std::byte> part : PartsBefore(key, parent, tokens)) {
    std::ranges::copy(part, bytes.begin());
    bytes = bytes.subspan(part.size());
  }
  if (segments_.empty() || segments_.back().file->is_full()) {
    RETURN_IF_ERROR(BeginSegment());
    if (std::ssize(segments_) > max_segments_) RETURN_IF_ERROR(DropOldest());
  }
  const absl::Status status = Append(key, record_);
  UpdateBytes();
  return status;
}

absl::Status SegmentStore::BeginSegment() {
  const uint64_t id = next_id_++;
  ASSIGN_OR_RETURN(std::unique_ptr<SegmentFile> file, SegmentFile::Create(directory_, shape_, id));
  segments_.push_back({.file = std::move(file)});
  return absl::OkStatus();
}

absl::Status SegmentStore::Append(const BlockKey& key, std::span<const std::byte> record) {
  Segment& segment = segments_.back();
  ASSIGN_OR_RETURN(const SegmentFile::Entry entry, segment.file->Append(key, record));
  segment.keys.push_back(key);
  const base::MutexLock lock(mu_);
  index_[key] = {.segment = segment.file->id(), .slot = entry.slot, .sum = entry.sum};
  return absl::OkStatus();
}

absl::Status SegmentStore::DropOldest() {
  const Segment oldest = std::move(segments_.front());
  segments_.pop_front();
  const uint64_t id = oldest.file->id();
  const std::vector<BlockKey> keys = named_();
  const absl::flat_hash_set<BlockKey, BlockKeyHash> named(keys.begin(), keys.end());
  int64_t num_left = std::max<int64_t>(1, shape_.num_slots / kKeptShare);
  // The new segment has room for the block that is put after this.
  num_left = std::min(num_left, shape_.num_slots - 1);
  std::vector<std::byte> record(record_.size());
  absl::Status status;
  for (const BlockKey& key : oldest.keys) {
    SegmentFile::Entry entry{.key = key};
    bool is_kept = false;
    {
      const base::MutexLock lock(mu_);
      const auto it = index_.find(key);
      if (it == index_.end() || it->second.segment != id) continue;
      entry.slot = it->second.slot;
      entry.sum = it->second.sum;
      is_kept = (it->second.was_read || named.contains(key)) && num_left > 0 && status.ok();
      if (!is_kept) index_.erase(it);
    }
    if (!is_kept) continue;
    const absl::StatusOr<bool> whole = oldest.file->Read(entry, record);
    status.Update(whole.status());
    if (whole.ok() && *whole) status.Update(Append(key, record));
    Forget(key, id);
    --num_left;
  }
  status.Update(directory_.Remove(SegmentFile::NameOf(id)));
  return status;
}

SegmentFile* SegmentStore::FindSegment(uint64_t id) const {
  const auto it =
      std::ranges::find(segments_, id, [](const Segment& segment) { return segment.file->id(); });
  return it == segments_.end() ? nullptr : it->file.get();
}

void SegmentStore::Forget(const BlockKey& key, uint64_t segment) {
  const base::MutexLock lock(mu_);
  const auto it = index_.find(key);
  if (it != index_.end() && it->second.segment == segment) index_.erase(it);
}

absl::StatusOr<bool> SegmentStore::Get(const BlockKey& key, const BlockKey& parent,
                                       std::span<const int32_t> tokens,
                                       std::span<std::byte> record) {
  Place place;
  {
    const base::MutexLock lock(mu_);
    const auto it = index_.find(key);
    if (it == index_.end()) return false;
    it->second.was_read = true;
    place = it->second;
  }
  ASSIGN_OR_RETURN(
      bool is_there,
      FindSegment(place.segment)->Read({.slot = place.slot, .key = key, .sum = place.sum}, record));
  std::span<const std::byte> found = record;
  for (const std::span<const std::byte> part : PartsBefore(key, parent, tokens)) {
    is_there = is_there && std::ranges::equal(found.first(part.size()), part);
    found = found.subspan(part.size());
  }
  if (!is_there) {
    Forget(key, place.segment);
    ++num_damaged_;
  }
  return is_there;
}

absl::Status SegmentStore::Erase(const BlockKey& key) {
  Place place;
  {
    const base::MutexLock lock(mu_);
    const auto it = index_.find(key);
    if (it == index_.end()) return absl::OkStatus();
    place = it->second;
    index_.erase(it);
  }
  return FindSegment(place.segment)->Clear(place.slot);
}

void SegmentStore::UpdateBytes() {
  int64_t bytes = 0;
  for (const Segment& segment : segments_) bytes += segment.file->bytes();
  bytes_.store(bytes, std::memory_order_relaxed);
}

}  // namespace quire::engine
