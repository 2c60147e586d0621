#pragma once

// Macros that pass an absl::Status up the stack. A status is for errors that a client, a file or a
// device can cause. For an invariant of our own code, use QUIRE_CHECK (base/check.h).

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expr)                           \
  do {                                                  \
    if (absl::Status status_ = (expr); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

#define QUIRE_CONCAT_INNER_(a, b) a##b
#define QUIRE_CONCAT_(a, b) QUIRE_CONCAT_INNER_(a, b)

// For example: ASSIGN_OR_RETURN(auto value, Fallible());
#define ASSIGN_OR_RETURN(lhs, expr) \
  QUIRE_ASSIGN_OR_RETURN_(QUIRE_CONCAT_(status_or_, __LINE__), lhs, expr)

#define QUIRE_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                            \
  if (!tmp.ok()) {                              \
    return tmp.status();                        \
  }                                             \
  lhs = std::move(tmp).value()
