#pragma once

// The keys of a job file, for who offers them while somebody types.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace harmony::job {

struct KeyOffer {
  absl::string_view name;                 // "data.path"
  std::vector<absl::string_view> values;  // all that it takes; empty: they cannot be listed
  bool is_path = false;
};

// Every key that a job file takes, without other trainers' names for them.
std::vector<KeyOffer> KeyOffers();

}  // namespace harmony::job
