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

namespace quire::engine {

// Times without the word "wall" are the engine's clock's. Guarded by the registry's mutex, apart
// from the counts in `content`.
struct PrefixRecord {
  uint64_t pin = 0;
  std::string name;
  PrefixState state = PrefixState::kComputing;
  absl::Status error;  // of a failed prefix
  std::string tenant;
  std::string salt;
  std::string display_name;
  std::vector<std::string> allowed_tenants;
  absl::Time create_wall;
  absl::Time update_wall;
  uint64_t version = 1;  // of what an update may change
  // The end: `expires`, or if refresh_on_hit, ttl after the last hit, if that is later.
  // `expires_wall` is the same time by the wall clock, as it was given or was when it was set.
  absl::Time expires;
  absl::Time expires_wall;
  absl::Duration ttl;  // zero if it was given an end
  bool refresh_on_hit = false;
  absl::Time timer = absl::InfiniteFuture();     // set for it
  bool is_gone = false;                          // the registry no longer has it
  std::shared_ptr<Request> request;              // that computes it
  PromptContent given;                           // until it is tokenized
  std::shared_ptr<const PrefixContent> content;  // from then on
  std::string content_sha256;
  std::string request_id;  // it was created with; empty: none
  std::string request_digest;
  absl::Time saved_end = absl::InfinitePast();   // End(), as the disk has it
  bool is_warming = false;                       // it was cold, and is being computed again
  absl::Time warm_again = absl::InfinitePast();  // a use does not warm a cold prefix before
  std::vector<int64_t> blocks;                   // pinned, by KV group; empty: none
  std::vector<int32_t> pinned_ids;               // of group 0; empty unless it is ready
  std::vector<NamedPrefixes::Done> waiters;

  bool IsOwnedBy(const PrefixCaller& caller) const {
    return caller.is_operator || caller.tenant == tenant;
  }
  bool MayBeUsedBy(const PrefixCaller& caller) const;
  absl::Time End() const;
  // Converts a time of the engine's clock, such as End(), to one of the wall clock. The result does
  // not change with either clock.
  absl::Time ToWall(absl::Time time) const { return expires_wall + (time - expires); }
  std::string etag() const;
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
