#pragma once

// The table of contexts, the part that named prefixes and sessions have in common.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/resource_name.h"
#include "base/strings.h"
#include "engine/request/contexts.h"
#include "engine/request/shared_limit.h"

namespace quire::engine {

// The members that each context has. Times without the word "wall" are the engine's clock's.
struct Context {
  uint64_t pin_id = 0;  // names its pin in CacheMap; ascends in the order of creation
  std::string name;     // a collection, a slash, and 26 characters of base32
  std::string tenant;   // the owner
  std::string salt;
  std::string display_name;
  uint64_t version = 1;  // of what its etag stands for
  absl::Time create_wall;
  // The end, and the same time by the wall clock, as it was given or was when it was set.
  absl::Time expires;
  absl::Time expires_wall;
  absl::Duration ttl;                         // zero if it was given an end
  std::string request_id;                     // it was created with; empty: none
  std::vector<int64_t> blocks;                // counted as pinned for it, by KV group; empty: none
  absl::Time request_end;                     // the table's: until then the id finds it
  absl::Time timer = absl::InfiniteFuture();  // the table's

  std::string etag() const;
};

// Returns InvalidArgument, which begins with the name of the field, if `text` has more than `most`
// bytes.
absl::Status CheckLength(const char* field, std::string_view text, size_t most);
// Returns Aborted if `etag` is not empty, and not that of the context.
absl::Status CheckEtag(const Context& context, std::string_view etag);
// Returns PermissionDenied unless the caller may list what `tenant` has.
absl::Status CheckMayList(const ContextCaller& caller, std::string_view tenant);
// Returns the error of a request_id that came with something else before.
absl::Status OtherRequest();

// A request_id finds what was created with it for this time, and no longer than it is there.
inline constexpr absl::Duration kRequestIdKept = absl::Hours(1);

// Finds contexts by name, by pin and by request_id, in the order of creation, and by the time of
// their next timer. Bounds their number. Record is derived from Context. Not thread-safe: the
// owner's mutex guards the table and what is in it.
template <typename Record>
class ContextTable {
 public:
  using Ptr = std::shared_ptr<Record>;

  struct Config {
    const char* collection;  // begins each name, such as "sessions"
    int64_t most = 0;        // of all tenants together
    uint64_t first_pin = 1;
    // Called when a timer is due earlier than every other. Must not call back.
    std::function<void()> on_earlier_timer = {};
  };

  // `clock` must outlive the table.
  ContextTable(const base::Clock& clock, Config config)
      : clock_(clock),
        config_(std::move(config)),
        next_pin_(config_.first_pin),
        num_records_(config_.most) {}

  // Returns ResourceExhausted if the tenant may not have `count` more. `what` begins the message.
  absl::Status CheckRoom(std::string_view what, std::string_view tenant, const TenantLimits& limits,
                         int64_t count) const {
    return num_records_.Check(what, tenant, limits, count);
  }
  int64_t num_of(std::string_view tenant) const { return num_records_.of(tenant); }

  // Adds a new context, and gives it its pin_id, name and time of creation.
  void AddNew(const Ptr& record) {
    record->pin_id = next_pin_++;
    do {
      record->name = base::NewResourceName(config_.collection);
    } while (by_name_.contains(record->name));
    record->create_wall = clock_.Date();
    Add(record, kRequestIdKept);
  }
  // Adds a context that has all of these from an earlier run. Its request_id finds it for
  // `request_left`.
  void Add(const Ptr& record, absl::Duration request_left) {
    records_.emplace(record->pin_id, record);
    by_name_.emplace(record->name, record);
    num_records_.Take(record->tenant, 1);
    if (record->request_id.empty() || request_left <= absl::ZeroDuration()) return;
    record->request_end = clock_.Now() + request_left;
    by_request_[{record->tenant, record->request_id}] = record;
  }
  // Later contexts have this pin_id and more.
  void set_next_pin(uint64_t next_pin) { next_pin_ = next_pin; }

  void Remove(const Ptr& record) {
    timers_.erase({record->timer, record->pin_id});
    const auto it = by_request_.find({record->tenant, record->request_id});
    if (it != by_request_.end() && it->second == record) by_request_.erase(it);
    by_name_.erase(record->name);
    num_records_.GiveBack(record->tenant, 1);
    records_.erase(record->pin_id);
  }

  // These return null if there is none.
  Ptr Find(std::string_view name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : it->second;
  }
  Ptr FindPin(uint64_t pin_id) const {
    const auto it = records_.find(pin_id);
    return it == records_.end() ? nullptr : it->second;
  }
  // The context that the tenant created with this id within the hour.
  Ptr FindRequest(std::string_view tenant, std::string_view request_id) const {
    const auto it = by_request_.find(std::pair(std::string(tenant), std::string(request_id)));
    const bool is_known = it != by_request_.end() && clock_.Now() < it->second->request_end;
    return is_known ? it->second : nullptr;
  }
  const std::map<uint64_t, Ptr>& records() const { return records_; }  // by pin_id

  struct Page {
    std::vector<Ptr> records;  // in the order of creation
    uint64_t next = 0;         // where the next page begins; 0: there is none
  };
  // Returns one page of the contexts for which `is_listed` holds. `after` is 0, or the next of the
  // page before.
  template <typename IsListed>
  Page List(uint64_t after, int32_t at_most, IsListed is_listed) const {
    Page page;
    for (auto it = records_.upper_bound(after); it != records_.end(); ++it) {
      if (!is_listed(*it->second)) continue;
      if (std::ssize(page.records) == at_most) {
        page.next = page.records.back()->pin_id;
        break;
      }
      page.records.push_back(it->second);
    }
    return page;
  }

  // Sets the end of a context to a time from now.
  void SetEndAfter(Record& record, absl::Duration left) const {
    record.expires = clock_.Now() + left;
    record.expires_wall = clock_.Date() + left;
  }
  // InfiniteFuture: the context has no timer.
  void SetTimer(Record& record, absl::Time time) {
    timers_.erase({record.timer, record.pin_id});
    record.timer = time;
    if (time == absl::InfiniteFuture()) return;
    timers_.emplace(time, record.pin_id);
    const bool is_first = timers_.begin()->second == record.pin_id;
    if (is_first && config_.on_earlier_timer) config_.on_earlier_timer();
  }
  // Returns a context whose timer is due at `now`, and takes the timer away; null: none is due.
  // Whoever takes all that are due has one `now` for all, so that one that is set anew is not taken
  // again and again.
  Ptr TakeDue(absl::Time now) {
    if (next_timer() > now) return nullptr;
    const Ptr record = records_.at(timers_.begin()->second);
    SetTimer(*record, absl::InfiniteFuture());
    return record;
  }
  absl::Time next_timer() const {
    return timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first;
  }

 private:
  const base::Clock& clock_;
  const Config config_;
  uint64_t next_pin_;
  std::map<uint64_t, Ptr> records_;
  std::unordered_map<std::string, Ptr, base::StringHash, std::equal_to<>> by_name_;
  // By tenant and request_id.
  std::map<std::pair<std::string, std::string>, Ptr> by_request_;
  std::set<std::pair<absl::Time, uint64_t>> timers_;  // times and pins
  SharedLimit num_records_;
};

}  // namespace quire::engine
