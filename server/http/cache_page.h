#pragma once

// The page of the KV cache at /debug/cache: one document without outside resources.

#include <string>
#include <string_view>

namespace quire::server {

// The document. It gets its data from /debug/cache.json each second.
std::string_view CachePage();

// The header lines of the document: a Content-Security-Policy that lets the document's own script
// and style run, by their digests, and nothing else.
const std::string& CachePageHeaders();

}  // namespace quire::server
