#pragma once

// Readers of plain values, for the table of keys. Each returns an InvalidArgument that begins with
// the value's origin, then names the key, what it is and what it must be. Private to this folder.

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/job/job_keys.h"

namespace harmony::job {

inline constexpr double kHuge = 1e30;
inline constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

absl::Status Wrong(const JobKey& key, const JobValue& value, absl::string_view must);

// One value, and not a text by its quotes.
bool IsPlain(const JobValue& value);

absl::Status ReadInt(const JobKey& key, const JobValue& value, int64_t min, int64_t max,
                     int64_t* out);
absl::Status ReadDouble(const JobKey& key, const JobValue& value, double min, double max,
                        absl::string_view must, double* out);
absl::Status ReadBool(const JobKey& key, const JobValue& value, bool* out);
absl::Status ReadText(const JobKey& key, const JobValue& value, std::string* out);

}  // namespace harmony::job
