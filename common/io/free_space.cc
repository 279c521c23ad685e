#include "common/io/free_space.h"

#include <sys/statvfs.h>

#include <filesystem>

namespace harmony::io {

std::optional<FreeSpace> FreeSpaceAt(const std::string& path) {
  std::error_code error;
  std::filesystem::path folder = path;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return FreeSpace{folder.string(), Bytes(static_cast<int64_t>(info.f_bavail) *
                                          static_cast<int64_t>(info.f_frsize))};
}

}  // namespace harmony::io
