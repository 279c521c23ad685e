#pragma once

// The one way errors travel: absl::Status, with context added on the way up.
//
//   HARMONY_RETURN_IF_ERROR(ReadHeader(file));
//   HARMONY_RETURN_IF_ERROR_CTX(ReadHeader(file), absl::StrCat("reading ", path));
//   HARMONY_ASSIGN_OR_RETURN(auto spec, ParseConfig(json));
//
// Codes we use, and what the CLI makes of them (exit code):
//   InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, OutOfRange, Unimplemented
//       -> the input or the usage is wrong (2)
//   ResourceExhausted -> out of memory, named with sizes (1; 2 when found before the run starts)
//   Aborted           -> a generation ended under the caller's feet; try again in the new one
//   DataLoss          -> a file or record fails its checksum
//   DeadlineExceeded, Unavailable, Internal, Cancelled -> failure at run time (1)

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace harmony {

// Puts "context: " in front of the message of a failed status, payloads kept; OK stays OK.
absl::Status WithContext(const absl::Status& status, absl::string_view context);

// 0, 1 or 2, as in the table above (ResourceExhausted counts as 1).
int ExitCodeOf(const absl::Status& status);

}  // namespace harmony

#define HARMONY_CONCAT_INNER(a, b) a##b
#define HARMONY_CONCAT(a, b) HARMONY_CONCAT_INNER(a, b)

#define HARMONY_RETURN_IF_ERROR(expr)                                                      \
  do {                                                                                     \
    if (absl::Status harmony_status = (expr); !harmony_status.ok()) return harmony_status; \
  } while (false)

// As above, with text put in front: HARMONY_RETURN_IF_ERROR_CTX(Load(f), absl::StrCat("loading ",
// f));
#define HARMONY_RETURN_IF_ERROR_CTX(expr, context)                  \
  do {                                                              \
    if (absl::Status harmony_status = (expr); !harmony_status.ok()) \
      return ::harmony::WithContext(harmony_status, context);       \
  } while (false)

#define HARMONY_ASSIGN_OR_RETURN(lhs, expr) \
  HARMONY_ASSIGN_OR_RETURN_INNER(HARMONY_CONCAT(harmony_statusor_, __LINE__), lhs, expr)
#define HARMONY_ASSIGN_OR_RETURN_INNER(var, lhs, expr) \
  auto var = (expr);                                   \
  if (!var.ok()) return std::move(var).status();       \
  lhs = *std::move(var)
