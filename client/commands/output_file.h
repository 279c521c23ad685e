#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace harmony::client {

// Before work whose result is to be written to `path`, as `option` says: InvalidArgument when that
// will not be possible, or would overwrite one of `inputs` (empty ones are no files). Leaves
// nothing behind; what is there stays as it is.
absl::Status CheckOutputFile(absl::string_view option, const std::string& path,
                             const std::vector<std::string>& inputs);

// Writes such a result; makes the folders on the way to it. A file is replaced whole or stays as it
// was, that behind a symbolic link, too; into a pipe or a device is written as it is.
absl::Status WriteOutputFile(const std::string& path, absl::string_view contents);

}  // namespace harmony::client
