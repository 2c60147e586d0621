#pragma once

// The registry's record of one named prefix.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "engine/request/named_prefixes.h"
#include "engine/request/prefix_content.h"
#include "engine/sharing/context_table.h"

namespace quire::engine {

// Guarded by the registry's mutex, apart from the counts in `content`. The version is of what an
// update may change.
struct PrefixRecord : Context {
  PrefixState state = PrefixState::kComputing;
  absl::Status error;  // of a failed prefix
  std::vector<std::string> allowed_tenants;
  absl::Time update_wall;
  bool refresh_on_hit = false;
  bool is_gone = false;                          // the registry no longer has it
  std::shared_ptr<Request> request;              // that computes it
  PromptContent given;                           // until it is tokenized
  std::shared_ptr<const PrefixContent> content;  // from then on
  std::string content_sha256;
  std::string request_digest;                    // of what came with the request_id
  absl::Time saved_end = absl::InfinitePast();   // End(), as the disk has it
  bool is_warming = false;                       // it was cold, and is being computed again
  absl::Time warm_again = absl::InfinitePast();  // a use does not warm a cold prefix before
  std::vector<int32_t> pinned_ids;               // of group 0; empty unless it is ready
  std::vector<NamedPrefixes::Done> waiters;

  bool IsOwnedBy(const ContextCaller& caller) const {
    return caller.is_operator || caller.tenant == tenant;
  }
  bool MayBeUsedBy(const ContextCaller& caller) const;
  // Returns the end: `expires`, or if refresh_on_hit, ttl after the last hit, if that is later.
  absl::Time End() const;
  // Converts a time of the engine's clock, such as End(), to one of the wall clock. The result does
  // not change with either clock.
  absl::Time ToWall(absl::Time time) const { return expires_wall + (time - expires); }
};

// Returns InvalidArgument, with what is wanted, unless the value is one that a prefix may have.
absl::Status CheckAllowedTenants(const std::vector<std::string>& tenants);

// Returns the number of bytes that Frontend::EncodePrefix tokenizes; a token id counts as one.
int64_t NumBytesToEncode(const PromptContent& given);
// Returns a digest that differs when the prefixes to create differ in anything.
std::string RequestDigest(const PrefixParams& params);
// Returns true if the digest is that of `params`. Logs of earlier servers have digests of the
// content alone, which are compared as such.
bool IsDigestOf(std::string_view digest, const PrefixParams& params);
// Returns the SHA-256, 32 bytes, of the model's digest, as it is shown, and the ids, each a
// little-endian int32.
std::string ContentDigest(std::string_view model_digest, const TokenIds& ids);

}  // namespace quire::engine
