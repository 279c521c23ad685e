#pragma once

// Profiles and calibrations that were measured before: $XDG_CACHE_HOME/harmony/profiles, else
// ~/.cache/..., a file a fingerprint.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "client/commands/profile_measure.h"

namespace harmony::client {

// What measured times depend on besides what is measured: versions and programs.
std::string MeasurersText(const std::string& bin_dir, const profile::ProfileVersions& versions);

// Where a profile with all of `fingerprint_text` in common is kept; empty: no home directory.
std::string CachePath(absl::string_view prefix, const std::string& fingerprint_text);

// Whether anything is kept under such a prefix; costs nothing.
bool AnythingCached(absl::string_view prefix);

struct Obtained {
  profile::Profile profile;
  bool cached = false;     // nothing was measured now
  std::string cache_path;  // empty: no home directory
  double seconds = 0;      // that measuring took
};
enum class ObtainBy { kMeasuring, kCacheElseMeasuring, kCacheOnly };

// What is kept at `cache_path` where it `fits`, else what `measure` measures, which is then kept.
// A damaged file is as good as none, and `say` says so. None: it is not there, and nothing else was
// allowed.
absl::StatusOr<std::optional<Obtained>> Obtain(
    const std::string& cache_path, ObtainBy by, const std::function<void(const std::string&)>& say,
    const std::function<bool(const profile::Profile&)>& fits,
    const std::function<absl::StatusOr<profile::Profile>()>& measure);

// The profile that `harmony profile` writes.
absl::StatusOr<std::optional<Obtained>> ObtainProfile(const MeasureOptions& measure, ObtainBy by);

}  // namespace harmony::client
