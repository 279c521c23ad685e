#include "client/commands/followed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace harmony::client {

FollowedFile::FollowedFile(std::string path, int last_lines)
    : path_(std::move(path)), last_lines_(last_lines) {}

std::vector<std::string> FollowedFile::TakeLines() {
  std::vector<std::string> lines;
  if (!fd_.valid()) fd_ = ipc::UniqueFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  while (fd_.valid()) {
    // Asked before the file is read: who renamed it away may have written to it until then.
    const bool replaced = IsReplaced();
    ReadOn(&lines);
    if (!replaced) break;
    EndLine(&lines);
    read_ = 0;
    fd_ = ipc::UniqueFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }
  const int wanted = std::exchange(last_lines_, -1);
  if (wanted >= 0 && lines.size() > static_cast<size_t>(wanted)) {
    lines.erase(lines.begin(), lines.end() - wanted);
  }
  return lines;
}

// One that was renamed or removed, and has no successor yet, may still be written to.
bool FollowedFile::IsReplaced() const {
  struct stat by_fd = {}, by_name = {};
  return fstat(fd_.get(), &by_fd) == 0 && stat(path_.c_str(), &by_name) == 0 &&
         (by_fd.st_ino != by_name.st_ino || by_fd.st_dev != by_name.st_dev);
}

void FollowedFile::ReadOn(std::vector<std::string>* lines) {
  struct stat info = {};
  if (fstat(fd_.get(), &info) == 0 && info.st_size < read_) {
    EndLine(lines);
    read_ = 0;
  }
  char part[1 << 16];
  for (;;) {
    const ssize_t count = pread(fd_.get(), part, sizeof(part), read_);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    read_ += count;
    for (const char* at = part; at != part + count; ++at) {
      if (*at != '\n') {
        partial_.push_back(*at);
        continue;
      }
      lines->push_back(std::exchange(partial_, {}));
      // Of a long log only the end is kept while it is read for the first time.
      if (last_lines_ >= 0 && lines->size() > 2 * static_cast<size_t>(last_lines_) + 1000) {
        lines->erase(lines->begin(), lines->end() - last_lines_);
      }
    }
  }
}

void FollowedFile::EndLine(std::vector<std::string>* lines) {
  if (!partial_.empty()) lines->push_back(std::exchange(partial_, {}));
}

}  // namespace harmony::client
