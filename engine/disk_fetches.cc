#include "engine/disk_fetches.h"

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
SequenceId LoadOf(int64_t fetch) { return -fetch; }

}  // namespace

DiskFetches::~DiskFetches() {
  for (const Fetch& fetch : fetches_) {
    if (fetch.num_placed == 0) continue;
    blocks_.Release(LoadOf(fetch.what.id));
    blocks_.charges().Release(fetch.payer);
  }
}

bool DiskFetches::TryWait(const std::shared_ptr<const Request>& request, std::string root_key,
                          std::shared_ptr<const DiskChain> chain, absl::Time now) {
  if (waiting_.empty()) last_event_ = now;
  return TryWait({.request = request, .root_key = std::move(root_key), .chain = std::move(chain)});
}

bool DiskFetches::TryWait(Waiting waiting) {
  const DiskChain& chain = *waiting.chain;
  if (!tier_.IsUsable() || ++waiting.num_tries > kMostTries) return false;
  const auto num_cached = blocks_.NumCached(waiting.root_key, waiting.request->prompt_ids);
  const int64_t begin = num_cached / blocks_.block_size();
  // What a fetch brings is cached, and must not be evicted for its own later blocks.
  const int64_t most = std::min(chain.num_blocks(), begin + blocks_.num_available() / 2);
  int64_t end = begin;
  while (end < most && chain.is_there[static_cast<size_t>(end)]) ++end;
  if (end - begin < kLeastBlocks) return false;
  for (const Fetch& fetch : fetches_) {
    const auto i = static_cast<size_t>(begin);
    const bool has_next = fetch.next <= begin && begin < fetch.what.end &&
                          fetch.what.chain->keys[i + 1] == chain.keys[i + 1];
    if (!has_next || !fetch.is_wanted) continue;
    waiting.fetch = fetch.what.id;
    waiting.is_first = false;
    waiting_.push_back(std::move(waiting));
    return true;
  }
  const DiskFetch what{.id = last_id_ + 1, .chain = waiting.chain, .begin = begin, .end = end};
  if (!tier_.StartFetch(what)) return false;
  last_id_ = what.id;
  fetches_.push_back({.what = what,
                      .root_key = waiting.root_key,
                      .tenant = waiting.request->params.sched.tenant,
                      .next = begin});
  waiting.fetch = what.id;
  waiting.is_first = true;
  waiting_.push_back(std::move(waiting));
  return true;
}

bool DiskFetches::TryWaitForPrefix(const std::shared_ptr<const Request>& request) {
  const auto load = std::ranges::find_if(waiting_, [&](const Waiting& waiting) {
    return waiting.request->pins == request->prefix->pin;
  });
  if (load == waiting_.end()) return false;
  waiting_.push_back({.request = request, .fetch = load->fetch});
  return true;
}

bool DiskFetches::StopWaiting(const Request& request) {
  const auto it = std::ranges::find(waiting_, &request,
                                    [](const Waiting& waiting) { return waiting.request.get(); });
  if (it == waiting_.end()) return false;
  const int64_t id = it->fetch;
  waiting_.erase(it);
  Fetch* const fetch = Find(id);
  fetch->is_wanted = std::ranges::find(waiting_, id, &Waiting::fetch) != waiting_.end();
  if (!fetch->is_wanted) tier_.EndFetch(id);
  if (!fetch->is_wanted && fetch->num_placed == 0) End(id);
  return true;
}

std::vector<DiskFetches::Released> DiskFetches::Advance(absl::Time now) {
  released_.clear();
  while (const std::optional<DiskEvent> event = tier_.TakeEvent()) {
    last_event_ = now;
    Handle(*event);
  }
  if (waiting_.empty()) return std::exchange(released_, {});
  const bool is_usable = tier_.IsUsable() && now - last_event_ < kMostSilence;
  const std::vector<Waiting> all = waiting_;
  for (const Waiting& waiting : all) {
    const Request& request = *waiting.request;
    if (is_usable && now < request.deadline) continue;
    const Fetch fetch = *Find(waiting.fetch);
    if (StopWaiting(request)) AddReleased(waiting, fetch);
  }
  return std::exchange(released_, {});
}

void DiskFetches::Handle(const DiskEvent& event) {
  Fetch* const fetch = Find(event.fetch);
  if (fetch == nullptr) return;  // nobody wanted it any more
  switch (event.kind) {
    case DiskEvent::Kind::kStaged:
      if (TryPlace(*fetch, event.num_blocks)) return;
      tier_.EndFetch(event.fetch);
      return End(event.fetch);
    case DiskEvent::Kind::kPlaced: {
      fetch->next += std::exchange(fetch->num_placed, 0);
      const int64_t num_loaded = fetch->next * blocks_.block_size();
      blocks_.EndLoad(LoadOf(event.fetch),
                      TokensOf(*fetch->what.chain, fetch->next, blocks_.block_size()), num_loaded);
      blocks_.charges().Release(fetch->payer);
      break;
    }
    case DiskEvent::Kind::kEnded:
      break;
  }
  if (event.is_last || !fetch->is_wanted) End(event.fetch);
}

bool DiskFetches::TryPlace(Fetch& fetch, int64_t num_blocks) {
  if (num_blocks > blocks_.num_available() / 2) return false;
  const int64_t end = fetch.next + num_blocks;
  const auto tokens = TokensOf(*fetch.what.chain, end, blocks_.block_size());
  const SequenceId load = LoadOf(fetch.what.id);
  fetch.payer = blocks_.charges().Acquire(fetch.tenant);
  const int64_t num_cached = blocks_.TryBeginLoad(load, fetch.root_key, tokens, fetch.payer);
  if (num_cached < fetch.next) {  // what comes before was evicted meanwhile
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

void DiskFetches::End(int64_t id) {
  const auto it = std::ranges::find(fetches_, id, [](const Fetch& one) { return one.what.id; });
  const Fetch fetch = std::move(*it);
  fetches_.erase(it);
  tier_.NoteMisses(fetch.what.end - fetch.next);
  // A prefix is released before those that wait for it.
  const auto others =
      std::stable_partition(waiting_.begin(), waiting_.end(),
                            [id](const Waiting& waiting) { return waiting.fetch != id; });
  const std::vector<Waiting> done(std::make_move_iterator(others),
                                  std::make_move_iterator(waiting_.end()));
  waiting_.erase(others, waiting_.end());
  for (const Waiting& waiting : done) {
    const bool waits_on = waiting.chain != nullptr && !waiting.is_first && TryWait(waiting);
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
