#include "engine/disk/disk_tier.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace quire::engine {
namespace {

// The longest sleep of the thread when there is nothing to do.
constexpr std::chrono::seconds kIdle(10);

// For so long, blocks that were offered are still written when the engine stops.
constexpr std::chrono::seconds kLastWrites(1);

}  // namespace

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(const files::StateDirectory& directory,
                                                         DiskTierConfig config) {
  ASSIGN_OR_RETURN(auto store, SegmentStore::Open(directory, config.store));
  base::Log(base::LogLevel::kInfo, "engine", "K and V of blocks are kept on disk",
            {{"directory", directory.path()},
             {"blocks", store->num_blocks()},
             {"bytes", store->bytes()}});
  return std::unique_ptr<DiskTier>(new DiskTier(std::move(store), std::move(config)));
}

DiskTier::DiskTier(std::unique_ptr<SegmentStore> store, DiskTierConfig config)
    : config_(std::move(config)),
      store_(std::move(store)),
      spill_(config_.num_blocks, config_.store.block_size, [this] { Wake(); }),
      epoch_(store_->epoch()),
      most_staged_(std::max<int64_t>(1, config_.staging_bytes / store_->record_bytes())),
      known_(static_cast<size_t>(config_.num_blocks)) {
  offered_.tokens.reserve(static_cast<size_t>(config_.store.block_size));
}

void DiskTier::Start(std::function<void()> on_event) {
  on_event_ = std::move(on_event);
  thread_ = std::thread([this] { Run(); });
}

void DiskTier::Stop() {
  {
    const base::MutexLock lock(mu_);
    is_stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  const auto end = std::chrono::steady_clock::now() + kLastWrites;
  while (FlushOne() || (std::chrono::steady_clock::now() < end && (DiscardAll() || WriteOne()))) {
  }
}

void DiskTier::Wake() {
  const base::MutexLock lock(mu_);
  is_woken_ = true;
  work_.NotifyOne();
}

void DiskTier::Run() {
  while (true) {
    {
      base::MutexLock lock(mu_);
      if (is_stopping_) return;
      is_woken_ = false;
    }
    if (RunOne()) continue;
    base::MutexLock lock(mu_);
    if (!is_woken_ && !is_stopping_) work_.WaitFor(mu_, kIdle);
  }
}

bool DiskTier::RunOne() {
  return FlushOne() || DiscardAll() || PlaceStaged() || ReadOne() || WriteOne();
}

bool DiskTier::IsUsable() const {
  return disk_.busy_for() < config_.slow && absl::ToUnixNanos(config_.clock->Now()) >=
                                                paused_until_ns_.load(std::memory_order_relaxed);
}

void DiskTier::NoteError(const absl::Status& status) {
  errors_.Add(1);
  paused_until_ns_.store(absl::ToUnixNanos(config_.clock->Now() + config_.pause),
                         std::memory_order_relaxed);
  base::Log(base::LogLevel::kWarning, "engine",
            "the disk failed: K and V are not kept on it for a while",
            {{"status", status.ToString()}});
}

ReadPace DiskTier::pace() const {
  const base::MutexLock lock(mu_);
  return pace_;
}

DiskStats DiskTier::stats() const {
  return {.bytes = store_->bytes(),
          .hits = hits_.value(),
          .misses = misses_.value(),
          .errors = errors_.value(),
          .dropped = dropped_.value() + spill_.num_dropped()};
}

std::vector<BlockKey> DiskTier::KeysOf(std::string_view root_key, std::span<const int32_t> tokens,
                                       size_t num_blocks) const {
  const auto block_size = static_cast<size_t>(config_.store.block_size);
  std::vector<BlockKey> keys;
  keys.reserve(num_blocks + 1);
  keys.push_back(RootBlockKey(store_->secret(), root_key));
  for (size_t i = 0; i < num_blocks; ++i) {
    keys.push_back(ChildBlockKey(keys.back(), tokens.subspan(i * block_size, block_size)));
  }
  return keys;
}

std::shared_ptr<const DiskChain> DiskTier::LookUp(std::string_view root_key, uint64_t epoch,
                                                  std::span<const int32_t> tokens) const {
  const auto block_size = static_cast<size_t>(config_.store.block_size);
  const size_t num_blocks = tokens.empty() ? 0 : (tokens.size() - 1) / block_size;
  auto chain = std::make_shared<DiskChain>();
  chain->epoch = epoch;
  chain->keys = KeysOf(root_key, tokens, num_blocks);
  for (size_t i = 0; i < num_blocks; ++i) {
    chain->is_there.push_back(store_->Has(chain->keys[i + 1]));
  }
  const int64_t num_there = std::ranges::count(chain->is_there, true);
  misses_.Add(static_cast<int64_t>(num_blocks) - num_there);
  if (num_there == 0) return nullptr;
  const auto whole = tokens.first(num_blocks * block_size);
  chain->tokens.assign(whole.begin(), whole.end());
  return chain;
}

bool DiskTier::StartFetch(DiskFetch fetch) {
  {
    const base::MutexLock lock(mu_);
    if (waiting_.size() + (active_ ? 1 : 0) >= kMostFetches) return false;
    waiting_.push_back(std::move(fetch));
  }
  Wake();
  return true;
}

void DiskTier::Place(int64_t fetch, std::span<const int32_t> blocks) {
  {
    const base::MutexLock lock(mu_);
    QUIRE_CHECK(active_ && active_->fetch.id == fetch && active_->phase == Active::Phase::kStaged &&
                active_->num_staged == std::ssize(blocks))
        << "fetch " << fetch;
    places_.assign(blocks.begin(), blocks.end());
    active_->phase = Active::Phase::kPlacing;
  }
  Wake();
}

void DiskTier::EndFetch(int64_t fetch) {
  {
    const base::MutexLock lock(mu_);
    std::erase_if(waiting_, [fetch](const DiskFetch& one) { return one.id == fetch; });
    if (!active_ || active_->fetch.id != fetch) return;
    // The thread may be reading, or copying, a block of it.
    active_->is_ended = true;
    if (active_->phase == Active::Phase::kStaged) active_.reset();
  }
  Wake();
}

std::optional<DiskEvent> DiskTier::TakeEvent() {
  if (!has_events_.load(std::memory_order_acquire)) return std::nullopt;
  const base::MutexLock lock(mu_);
  const DiskEvent event = events_.front();
  events_.pop_front();
  has_events_.store(!events_.empty(), std::memory_order_release);
  return event;
}

int64_t DiskTier::NumToRead(int64_t fetch) const {
  const base::MutexLock lock(mu_);
  int64_t num_blocks = 0;
  if (active_ && active_->fetch.id <= fetch && !active_->is_ended && !active_->is_last) {
    num_blocks += active_->fetch.end - active_->next - active_->num_staged;
  }
  for (const DiskFetch& one : waiting_) {
    if (one.id <= fetch) num_blocks += one.end - one.begin;
  }
  return num_blocks;
}

void DiskTier::Send(DiskEvent event) {
  events_.push_back(event);
  has_events_.store(true, std::memory_order_release);
}

void DiskTier::Flush(FlushDone done) {
  {
    const base::MutexLock lock(mu_);
    flushes_.push_back(std::move(done));
  }
  Wake();
}

bool DiskTier::FlushOne() {
  FlushDone done;
  {
    const base::MutexLock lock(mu_);
    if (flushes_.empty()) return false;
    done = std::move(flushes_.front());
    flushes_.pop_front();
  }
  const base::Busy busy(disk_);
  const absl::Status status = store_->SetEpoch(epoch());
  if (!status.ok()) NoteError(status);
  std::move(done)(status);
  return true;
}

bool DiskTier::DiscardAll() {
  const std::vector<SpillQueue::Listing> discarded = spill_.TakeDiscarded();
  for (const SpillQueue::Listing& listing : discarded) {
    const Known& known = known_[static_cast<size_t>(listing.block)];
    if (known.ticket != listing.ticket) continue;  // it was not written
    const base::Busy busy(disk_);
    if (const absl::Status status = store_->Erase(known.key); !status.ok()) NoteError(status);
  }
  return !discarded.empty();
}

bool DiskTier::PlaceStaged() {
  std::vector<int32_t> places;
  {
    const base::MutexLock lock(mu_);
    if (!active_ || active_->phase != Active::Phase::kPlacing) return false;
    places.swap(places_);
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] < 0) continue;
    const std::span<const std::byte> payload = store_->PayloadOf(Staged(static_cast<int64_t>(i)));
    std::ranges::copy(payload, BlockOf(places[i]).begin());
  }
  hits_.Add(std::ssize(places));
  {
    const base::MutexLock lock(mu_);
    Active& active = *active_;
    const bool is_last = active.is_last || active.is_ended;
    Send({.fetch = active.fetch.id,
          .kind = DiskEvent::Kind::kPlaced,
          .num_blocks = active.num_staged,
          .is_last = is_last});
    active.next += active.num_staged;
    active.num_staged = 0;
    active.phase = Active::Phase::kReading;
    if (is_last) active_.reset();
  }
  on_event_();
  return true;
}

std::optional<DiskTier::Read> DiskTier::NextToRead() {
  const base::MutexLock lock(mu_);
  if (active_ && active_->is_ended && active_->phase == Active::Phase::kReading) active_.reset();
  if (!active_) {
    if (waiting_.empty()) return std::nullopt;
    Active next;
    next.fetch = std::move(waiting_.front());
    next.next = next.fetch.begin;
    waiting_.pop_front();
    active_.emplace(std::move(next));
  }
  if (active_->phase != Active::Phase::kReading) return std::nullopt;
  return Read{.fetch = active_->fetch,
              .block = active_->next + active_->num_staged,
              .place = active_->num_staged};
}

bool DiskTier::ReadOne() {
  const std::optional<Read> next = NextToRead();
  if (!next) return false;
  const DiskChain& chain = *next->fetch.chain;
  bool is_there = false;
  const absl::Time begin = config_.clock->Now();
  if (IsUsable() && chain.epoch == epoch()) {
    const auto i = static_cast<size_t>(next->block);
    const auto block_size = static_cast<size_t>(config_.store.block_size);
    const auto tokens = std::span(chain.tokens).subspan(i * block_size, block_size);
    const std::span<std::byte> record = Staged(next->place);
    const base::Busy busy(disk_);
    const absl::StatusOr<bool> got = store_->Get(chain.keys[i + 1], chain.keys[i], tokens, record);
    is_there = got.ok() && *got;
    if (!got.ok()) NoteError(got.status());
    errors_.Add(store_->num_damaged() - std::exchange(num_damaged_, store_->num_damaged()));
  }
  NoteRead(next->fetch.id, is_there, config_.clock->Now() - begin);
  return true;
}

void DiskTier::NoteRead(int64_t fetch, bool is_there, absl::Duration took) {
  {
    const base::MutexLock lock(mu_);
    if (is_there) pace_.NoteRead(took, config_.clock->Now());
    Active& active = *active_;
    if (active.is_ended) return active_.reset();
    active.num_staged += is_there ? 1 : 0;
    active.is_last = !is_there || active.next + active.num_staged == active.fetch.end;
    if (!active.is_last && active.num_staged < most_staged_) return;
    if (active.num_staged == 0) {
      Send({.fetch = fetch, .kind = DiskEvent::Kind::kEnded, .is_last = true});
      active_.reset();
    } else {
      Send({.fetch = fetch, .kind = DiskEvent::Kind::kStaged, .num_blocks = active.num_staged});
      active.phase = Active::Phase::kStaged;
    }
  }
  on_event_();
}

bool DiskTier::WriteOne() {
  if (!spill_.Take(offered_)) return false;
  const SpillQueue::Listing &listing = offered_.block, &parent = offered_.parent;
  BlockKey parent_key;
  if (parent.block < 0) {
    parent_key = RootBlockKey(store_->secret(), offered_.root_key);
  } else {
    const Known& known = known_[static_cast<size_t>(parent.block)];
    if (known.ticket != parent.ticket) {  // both were withdrawn meanwhile
      dropped_.Add(1);
      return true;
    }
    parent_key = known.key;
  }
  Known& known = known_[static_cast<size_t>(listing.block)];
  known = {.ticket = listing.ticket, .key = ChildBlockKey(parent_key, offered_.tokens)};
  if (store_->Has(known.key)) return true;
  const bool is_copied = IsUsable() && spill_.CopyIfListed(listing, [&] {
    std::ranges::copy(BlockOf(listing.block), store_->payload().begin());
  });
  if (!is_copied) {
    dropped_.Add(1);
    return true;
  }
  const base::Busy busy(disk_);
  if (const absl::Status status = store_->Put(known.key, parent_key, offered_.tokens);
      !status.ok()) {
    dropped_.Add(1);
    NoteError(status);
  }
  return true;
}

std::span<std::byte> DiskTier::Staged(int64_t i) {
  const auto bytes = static_cast<size_t>(store_->record_bytes());
  // Linux gives a page when it is first written. Zeros would be written before each first read.
  if (staging_ == nullptr) {
    staging_ =
        std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(most_staged_) * bytes);
  }
  return {staging_.get() + static_cast<size_t>(i) * bytes, bytes};
}

std::span<std::byte> DiskTier::BlockOf(int32_t block) const {
  const int64_t bytes = config_.store.block_bytes;
  return {config_.blocks + block * bytes, static_cast<size_t>(bytes)};
}

}  // namespace quire::engine
