#pragma once

// The profile's file (docs/profile.md), and the messages between `harmony profile` and the programs
// that measure for it. No file is read here.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/profile/profile.h"

namespace harmony::profile {

std::string ProfileToJson(const Profile& profile);
// Strict: InvalidArgument begins with `where` (the file's name) and names the field that is
// missing, unknown, of the wrong type, negative or not finite, a rate of zero, a device without
// memory, or the schema that is not ours.
absl::StatusOr<Profile> ParseProfile(absl::string_view text, absl::string_view where);

// ---- What one process measures ----

struct ProfileRequest {
  enum class Part {
    kVersions,  // a worker: what would measure
    kLayers,    // a device worker: its layers, alone
    kTogether,  // all device workers at once: one layer
    kHost,      // the host worker
    kLinks,     // the swapper
  };
  Part part = Part::kVersions;
  std::string job_json;     // JobSpecToJson
  std::string config_json;  // of the model
  bool quick = false;
  int layer = 0;  // kTogether
  int64_t samples = 0;
  std::string output;  // file for the answer
};
std::string ProfileRequestToJson(const ProfileRequest& request);
absl::StatusOr<ProfileRequest> ParseProfileRequest(absl::string_view text, absl::string_view where);

// What a process answers: its part of a profile, the rest left as it is. kLayers:
// devices[0].layers. kTogether: devices[0].together, in seconds of a forward and a backward.
// kLinks: the links of all devices.
std::string ProfilePartToJson(ProfileRequest::Part part, const Profile& profile);
// Or why it could not be measured; ParseProfilePart then returns just that status.
std::string ProfileFailureToJson(const absl::Status& status);
absl::StatusOr<Profile> ParseProfilePart(ProfileRequest::Part part, absl::string_view text,
                                         absl::string_view where);

}  // namespace harmony::profile
