#include "client/commands/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/ipc/fd_passing.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

// Makes the folder and those on the way to it; adds the ones that were missing, outermost first.
std::error_code MakeFolders(const fs::path& folder, std::vector<fs::path>* made) {
  std::error_code error;
  if (folder.empty() || fs::exists(folder, error) || error) return error;
  error = MakeFolders(folder.parent_path(), made);
  if (!error && fs::create_directory(folder, error)) made->push_back(folder);
  return error;
}

// Opens the file as a writer would, and takes away again what that made.
std::error_code TryToWrite(const fs::path& path, bool exists) {
  std::vector<fs::path> made;
  std::error_code error = MakeFolders(path.parent_path(), &made);
  if (!error) {
    const int flags = O_WRONLY | O_CLOEXEC | (exists ? 0 : O_CREAT | O_EXCL);
    const ipc::UniqueFd fd(open(path.c_str(), flags, 0644));
    if (!fd.valid()) error.assign(errno, std::generic_category());
    if (fd.valid() && !exists) unlink(path.c_str());
  }
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) rmdir(folder->c_str());
  return error;
}

}  // namespace

absl::Status CheckOutputFile(absl::string_view option, const std::string& path,
                             const std::vector<std::string>& inputs) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(option, " ", path, ": ", why));
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status) || !fs::path(path).has_filename()) {
    return wrong("is a directory; give the name of a file in it");
  }
  for (const std::string& input : inputs) {
    if (!input.empty() && fs::equivalent(path, input, error)) {
      return wrong("is a file that this command reads; give another one");
    }
  }
  if (fs::exists(status) && !fs::is_regular_file(status)) return absl::OkStatus();  // a pipe, say
  error = TryToWrite(path, fs::exists(status));
  if (error) return wrong(absl::StrCat("cannot be written (", error.message(), ")"));
  return absl::OkStatus();
}

absl::Status WriteOutputFile(const std::string& path, absl::string_view contents) {
  std::error_code error;
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) {
    fs::create_directories(folder, error);
  }
  if (!fs::exists(path, error) || fs::is_regular_file(path, error)) {
    const fs::path file =
        fs::is_symlink(path, error) ? fs::weakly_canonical(path, error) : fs::path(path);
    return io::WriteFileAtomically(file.string(), contents);
  }
  std::ofstream stream(path, std::ios::binary);
  stream << contents;
  if (!stream.flush()) return io::ErrnoStatus(errno, "writing", path);
  return absl::OkStatus();
}

}  // namespace harmony::client
