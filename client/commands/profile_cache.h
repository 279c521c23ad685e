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

// A cached profile that is whole; a damaged one is as good as none, and `say` says so.
std::optional<profile::Profile> ReadCached(const std::string& path,
                                           const std::function<void(const std::string&)>& say);
void WriteCached(const std::string& path, const profile::Profile& profile,
                 const std::function<void(const std::string&)>& say);

}  // namespace harmony::client
