#pragma once

// Named prefixes on disk, so that they outlive the server.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "engine/request/prefix_content.h"
#include "files/record_log.h"
#include "files/state_directory.h"

namespace quire::engine {

// The record that is kept of one prefix. Its times are those of the wall clock.
struct SavedPrefix {
  uint64_t pin = 0;
  std::string name;
  std::string tenant;
  std::string salt;
  std::string display_name;
  std::vector<std::string> allowed_tenants;
  absl::Time create_time;
  absl::Time update_time;
  absl::Time end;
  absl::Duration ttl;
  bool refresh_on_hit = false;
  uint64_t version = 1;
  std::string request_id;  // that it was created with; empty: none
  std::string request_digest;
  std::shared_ptr<const PrefixContent> content;  // never null
};

struct PrefixLogLimits {
  int64_t max_bytes = 0;   // of what the log must keep
  int32_t vocab_size = 0;  // token ids are below it
};

// The file `named.log` of a state directory. A prefix is written once with its content, and after
// each change without it. Once more than half of the file is of no use, the file is written anew,
// and so is one of an earlier version or a damaged one, when it is opened. Space is reserved for
// the ends of all prefixes, so that a full disk does not bring back what was deleted.
//
// Damage of a prefix's content costs this prefix. Damage of a change may hide that a tenant may not
// use the prefix any more, so only its owner may then use it; and if it is not known what is
// damaged, this holds for all prefixes that nothing whole is known of behind the damage.
//
// Not thread-safe. The functions wait for the disk.
class PrefixLog {
 public:
  // Opens the log, or creates it. `model_digest` identifies the model, whose token ids are in it.
  // Returns FailedPrecondition, with the cure, if the log is of another model, or a newer one than
  // this code knows; the file is then as it was.
  static absl::StatusOr<std::unique_ptr<PrefixLog>> Open(const files::StateDirectory& directory,
                                                         std::string_view model_digest,
                                                         const PrefixLogLimits& limits);

  // The prefixes that the log had when it was opened, in the order of their pins. Called once.
  std::vector<SavedPrefix> TakeSaved();
  // More than every pin that the log has had.
  uint64_t next_pin() const { return next_pin_; }
  bool Has(uint64_t pin) const { return sizes_.contains(pin); }

  // Write what has changed. It is on the disk after the next Sync. Save returns ResourceExhausted
  // if the log would have more than max_bytes of prefixes, or the disk has no space; Remove needs
  // none.
  absl::Status Save(const SavedPrefix& prefix);
  absl::Status Remove(uint64_t pin);
  absl::Status Sync() { return log_->Sync(); }

  // True after an error of the disk, until Rewrite has succeeded.
  bool is_broken() const { return log_->is_broken(); }
  // True if Rewrite is to be called: half of the file is of no use, or a write has failed.
  bool NeedsRewrite() const;
  // Writes a new file of the prefixes that `next` returns one by one, until it returns false, and
  // syncs it.
  absl::Status Rewrite(absl::FunctionRef<bool(SavedPrefix&)> next);

  int64_t bytes() const { return log_->bytes(); }

 private:
  explicit PrefixLog(const PrefixLogLimits& limits) : limits_(limits) {}
  absl::Status Read(const files::RecordLog::Record& record);
  // Closes the prefixes that are doubted to all but their owners, and says so.
  void CloseDoubted();
  absl::Status RewriteSaved();
  void NoteSize(uint64_t pin, int64_t bytes);

  const PrefixLogLimits limits_;
  std::unique_ptr<files::RecordLog> log_;
  std::map<uint64_t, SavedPrefix> saved_;  // until TakeSaved
  // While the log is read: pins whose last change may be lost, and that contents may be.
  std::set<uint64_t> doubted_;
  bool is_incomplete_ = false;
  std::map<uint64_t, int64_t> sizes_;  // of the records with content, in the file
  int64_t used_bytes_ = 0;             // their sum
  uint64_t next_pin_ = 1;
};

}  // namespace quire::engine
