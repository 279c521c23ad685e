#pragma once

#include <optional>
#include <string>

#include "common/base/units.h"

namespace harmony::io {

// Where a file system's room is looked at, and how much of it this user may still take.
struct FreeSpace {
  std::string folder;  // the path, or the nearest folder above it that there is
  Bytes bytes;
};
// Nothing where the file system does not say.
std::optional<FreeSpace> FreeSpaceAt(const std::string& path);

}  // namespace harmony::io
