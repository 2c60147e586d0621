#include "engine/disk/disk_fetches.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace quire::engine {
namespace {

// A request that joined the fetch of another may lack further blocks when that has ended.
constexpr int32_t kMostTries = 4;

// How often the disk is looked at while requests wait for it.
constexpr absl::Duration kLook = absl::Milliseconds(50);

// Loads have ids of their own among those of sequences, which are above 0.
SequenceId LoadId(int64_t fetch) { return -fetch; }

// Returns true if a tenant that holds `charge` blocks holds more than `most`; 0: no limit.
bool IsOverQuota(double charge, int32_t most) {
  return most > 0 && TenantCharges::Exceeds(charge, most);
}

}  // namespace

DiskFetches::~DiskFetches() {
  for (const Fetch& fetch : fetches_) {
    if (fetch.num_placed == 0) continue;
    blocks_.Release(LoadId(fetch.what.id));
    blocks_.charges().Release(fetch.payer);
  }
}

DiskFetches::Gain DiskFetches::GainOf(const Request& request, const std::string& root_key,
                                      const DiskChain& chain, absl::Time now) {
  const std::optional<Wait> wait = Consider(request, root_key, chain, now);
  return wait && !wait->is_trial ? GainOf(*wait) : Gain{};
}

DiskFetches::Gain DiskFetches::GainOfPrefix(const Request& request) {
  const Waiting* const load = LoadOf(request);
  if (load == nullptr) return {};
  Look();
  return GainOf(load->what);
}

DiskFetches::Gain DiskFetches::GainOf(const Wait& wait) const {
  const ReadPace::Wanted left = LeftOf(wait);
  return {.num_tokens = (wait.end - wait.begin) * blocks_.block_size(),
          .time = tier_.pace().TimeOf(left.num_before + left.num_blocks)};
}

bool DiskFetches::TryWait(const std::shared_ptr<const Request>& request, std::string root_key,
                          std::shared_ptr<const DiskChain> chain, absl::Time now) {
  if (waiting_.empty()) last_event_ = now;
  return TryWait({.request = request, .root_key = std::move(root_key), .chain = std::move(chain)},
                 now);
}

bool DiskFetches::TryWait(Waiting waiting, absl::Time now) {
  if (++waiting.num_tries > kMostTries) return false;
  const Request& request = *waiting.request;
  const std::optional<Wait> wait = Consider(request, waiting.root_key, *waiting.chain, now);
  if (!wait) return false;
  waiting.what = *wait;
  waiting.is_first = wait->fetch > last_id_;
  if (waiting.is_first) {
    const DiskFetch what{
        .id = wait->fetch, .chain = waiting.chain, .begin = wait->begin, .end = wait->end};
    if (!tier_.StartFetch(what)) return false;
    last_id_ = what.id;
    fetches_.push_back({.what = what,
                        .root_key = waiting.root_key,
                        .tenant = request.params.sched.tenant,
                        .max_blocks = request.params.limits.max_blocks,
                        .next = wait->begin});
    waiting.what.shared_end = wait->end;
  }
  waiting_.push_back(std::move(waiting));
  return true;
}

std::optional<DiskFetches::Wait> DiskFetches::Consider(const Request& request,
                                                       const std::string& root_key,
                                                       const DiskChain& chain, absl::Time now) {
  if (!tier_.IsUsable()) return std::nullopt;
  Look();
  const int64_t block_size = blocks_.block_size();
  const int64_t begin = blocks_.NumCached(root_key, request.prompt_ids) / block_size;
  Wait wait{.fetch = last_id_ + 1, .begin = begin, .shared_end = begin, .end = begin};
  // What a fetch brings is cached, and must not be evicted for its own later blocks.
  const int64_t most = std::min(chain.num_blocks(), begin + blocks_.num_available() / 2);
  while (wait.end < most && chain.is_there[static_cast<size_t>(wait.end)]) ++wait.end;
  const int64_t num_blocks = wait.end - begin;
  if (num_blocks < kLeastBlocks) return std::nullopt;
  const double charge = blocks_.charges().Charged(request.params.sched.tenant);
  if (IsOverQuota(charge + static_cast<double>(num_blocks), request.params.limits.max_blocks)) {
    return std::nullopt;
  }
  if (const Fetch* const fetch = FetchOf(chain, begin)) {
    wait.fetch = fetch->what.id;
    const auto has = [&](int64_t block) {
      const auto i = static_cast<size_t>(block + 1);
      return block < fetch->what.end && fetch->what.chain->keys[i] == chain.keys[i];
    };
    while (wait.shared_end < wait.end && has(wait.shared_end)) ++wait.shared_end;
  }
  const ReadPace pace = tier_.pace();
  switch (pace.Judge(LeftOf(wait), now)) {
    case ReadPace::Verdict::kCompute:
      return std::nullopt;
    case ReadPace::Verdict::kTrial: {
      wait.end = std::min(wait.end, wait.shared_end + ReadPace::kTrialBlocks);
      wait.is_trial = true;
      // It may take so long that a request that is in a hurry would be late.
      const int64_t num_tokens = std::ssize(request.prompt_ids) - begin * block_size;
      const absl::Duration took = pace.TimeOf(ReadPace::kTrialBlocks) + compute_time_(num_tokens);
      if (request.deadline - now < took) return std::nullopt;
      break;
    }
    case ReadPace::Verdict::kWait:
      break;
  }
  return wait;
}

const DiskFetches::Fetch* DiskFetches::FetchOf(const DiskChain& chain, int64_t begin) const {
  const auto i = static_cast<size_t>(begin + 1);
  const auto it = std::ranges::find_if(fetches_, [&](const Fetch& fetch) {
    return fetch.is_wanted && fetch.next <= begin && begin < fetch.what.end &&
           fetch.what.chain->keys[i] == chain.keys[i];
  });
  return it == fetches_.end() ? nullptr : &*it;
}

void DiskFetches::Look() {
  for (Fetch& fetch : fetches_) fetch.num_to_read = tier_.NumToRead(fetch.what.id);
}

ReadPace::Wanted DiskFetches::LeftOf(const Wait& wait) const {
  int64_t next = wait.begin, num_before = 0;
  for (const Fetch& fetch : fetches_) {
    if (fetch.what.id > wait.fetch) break;
    num_before = fetch.num_to_read;
    if (fetch.what.id == wait.fetch) next = fetch.next;
  }
  const int64_t num_lacking = wait.end - std::clamp(next, wait.begin, wait.shared_end);
  return {.num_blocks = wait.end - wait.shared_end,
          .num_before = num_before,
          .computing = compute_time_(num_lacking * blocks_.block_size())};
}

const DiskFetches::Waiting* DiskFetches::LoadOf(const Request& request) const {
  const auto load = std::ranges::find_if(waiting_, [&](const Waiting& waiting) {
    return waiting.request->pins == request.prefix->pin;
  });
  return load == waiting_.end() ? nullptr : &*load;
}

bool DiskFetches::TryWaitForPrefix(const std::shared_ptr<const Request>& request) {
  const Waiting* const load = LoadOf(*request);
  if (load == nullptr) return false;
  const Wait what = load->what;
  waiting_.push_back({.request = request, .what = what});
  return true;
}

bool DiskFetches::StopWaiting(const Request& request, absl::Time now) {
  const auto it = std::ranges::find(waiting_, &request,
                                    [](const Waiting& waiting) { return waiting.request.get(); });
  if (it == waiting_.end()) return false;
  const int64_t id = it->what.fetch;
  waiting_.erase(it);
  Fetch* const fetch = Find(id);
  fetch->is_wanted = std::ranges::any_of(
      waiting_, [id](const Waiting& waiting) { return waiting.what.fetch == id; });
  if (!fetch->is_wanted) tier_.EndFetch(id);
  if (!fetch->is_wanted && fetch->num_placed == 0) End(id, now);
  return true;
}

std::vector<DiskFetches::Released> DiskFetches::Advance(absl::Time now) {
  released_.clear();
  while (const std::optional<DiskEvent> event = tier_.TakeEvent()) {
    last_event_ = now;
    Handle(*event, now);
  }
  if (waiting_.empty()) return std::exchange(released_, {});
  const bool is_usable = tier_.IsUsable() && now - last_event_ < kMostSilence;
  const ReadPace pace = tier_.pace();
  Look();
  std::vector<Waiting> ended;
  for (const Waiting& waiting : waiting_) {
    const bool is_worth = waiting.what.is_trial || pace.IsWorth(LeftOf(waiting.what));
    const bool waits_on = is_usable && is_worth && now < waiting.request->deadline;
    if (!waits_on) ended.push_back(waiting);
  }
  for (const Waiting& waiting : ended) {
    const Fetch fetch = *Find(waiting.what.fetch);
    if (StopWaiting(*waiting.request, now)) AddReleased(waiting, fetch);
  }
  return std::exchange(released_, {});
}

void DiskFetches::Handle(const DiskEvent& event, absl::Time now) {
  Fetch* const fetch = Find(event.fetch);
  if (fetch == nullptr) return;  // nobody wanted it any more
  switch (event.kind) {
    case DiskEvent::Kind::kStaged:
      if (TryPlace(*fetch, event.num_blocks)) return;
      tier_.EndFetch(event.fetch);
      return End(event.fetch, now);
    case DiskEvent::Kind::kPlaced: {
      fetch->next += std::exchange(fetch->num_placed, 0);
      const int64_t num_loaded = fetch->next * blocks_.block_size();
      blocks_.EndLoad(LoadId(event.fetch),
                      TokensOf(*fetch->what.chain, fetch->next, blocks_.block_size()), num_loaded);
      blocks_.charges().Release(fetch->payer);
      break;
    }
    case DiskEvent::Kind::kEnded:
      break;
  }
  if (event.is_last || !fetch->is_wanted) End(event.fetch, now);
}

bool DiskFetches::TryPlace(Fetch& fetch, int64_t num_blocks) {
  if (num_blocks > blocks_.num_available() / 2) return false;
  const int64_t end = fetch.next + num_blocks;
  const auto tokens = TokensOf(*fetch.what.chain, end, blocks_.block_size());
  const SequenceId load = LoadId(fetch.what.id);
  fetch.payer = blocks_.charges().Acquire(fetch.tenant);
  const int64_t num_cached = blocks_.TryBeginLoad(load, fetch.root_key, tokens, fetch.payer);
  const double charge = blocks_.charges().Charge(fetch.payer);
  // The blocks before may have been evicted meanwhile, and the tenant may hold more than it did.
  if (num_cached < fetch.next || IsOverQuota(charge, fetch.max_blocks)) {
    if (num_cached >= 0) blocks_.Release(load, {.comes_back = true});
    blocks_.charges().Release(fetch.payer);
    return false;
  }
  const std::span<const int32_t> table = blocks_.Table(load);
  std::vector<int32_t> places(table.begin() + fetch.next, table.end());
  // Others have computed these meanwhile.
  std::fill_n(places.begin(), std::min(num_cached - fetch.next, num_blocks), -1);
  fetch.num_placed = num_blocks;
  tier_.Place(fetch.what.id, places);
  return true;
}

void DiskFetches::End(int64_t id, absl::Time now) {
  const auto it = std::ranges::find(fetches_, id, [](const Fetch& one) { return one.what.id; });
  const Fetch fetch = std::move(*it);
  fetches_.erase(it);
  tier_.NoteMisses(fetch.what.end - fetch.next);
  // A prefix is released before those that wait for it.
  const auto others =
      std::stable_partition(waiting_.begin(), waiting_.end(),
                            [id](const Waiting& waiting) { return waiting.what.fetch != id; });
  const std::vector<Waiting> done(std::make_move_iterator(others),
                                  std::make_move_iterator(waiting_.end()));
  waiting_.erase(others, waiting_.end());
  for (const Waiting& waiting : done) {
    const bool waits_on = waiting.chain != nullptr && !waiting.is_first && TryWait(waiting, now);
    if (!waits_on) AddReleased(waiting, fetch);
  }
}

void DiskFetches::AddReleased(const Waiting& waiting, const Fetch& fetch) {
  const int64_t begin = waiting.is_first ? fetch.what.begin : 0;
  const int64_t end = waiting.is_first ? fetch.next : 0;
  released_.push_back({.request = waiting.request,
                       .begin = begin * blocks_.block_size(),
                       .end = end * blocks_.block_size()});
}

DiskFetches::Fetch* DiskFetches::Find(int64_t id) {
  const auto it = std::ranges::find(fetches_, id, [](const Fetch& one) { return one.what.id; });
  return it == fetches_.end() ? nullptr : &*it;
}

absl::Time DiskFetches::NextWakeup(absl::Time now) const {
  return waiting_.empty() ? absl::InfiniteFuture() : now + kLook;
}

}  // namespace quire::engine
