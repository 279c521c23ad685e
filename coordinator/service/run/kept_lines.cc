#include "coordinator/service/run/kept_lines.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/ipc/fd_passing.h"

namespace harmony::service {
namespace {

constexpr int64_t kMostKeptBytes = int64_t{4} << 30;

}  // namespace

KeptLines KeptLines::Inherited(std::string job_id) {
  absl::StatusOr<ipc::UniqueFd> fd = ipc::InheritedFd(ipc::kKeptLinesFdVariable);
  if (!fd.ok()) return KeptLines();
  return KeptLines(fd->Release(), std::move(job_id));
}

absl::StatusOr<std::vector<KeptLines::Line>> KeptLines::Read() const {
  std::vector<Line> lines;
  if (fd_ < 0) return lines;
  HARMONY_ASSIGN_OR_RETURN(const std::string text,
                           io::ReadWholeFile(absl::StrCat("/proc/self/fd/", fd_), kMostKeptBytes));
  const absl::string_view whole = absl::string_view(text).substr(0, text.rfind('\n') + 1);
  for (const absl::string_view entry : absl::StrSplit(whole, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, absl::MaxSplits('\t', 2));
    int64_t step = 0;
    if (parts.size() != 3 || parts[0] != job_id_ || !absl::SimpleAtoi(parts[1], &step)) continue;
    lines.emplace_back(step, parts[2]);
  }
  return lines;
}

absl::Status KeptLines::Add(int64_t step, const std::string& line) {
  if (fd_ < 0) return absl::OkStatus();
  const std::string entry = absl::StrCat(job_id_, "\t", step, "\t", line, "\n");
  const off_t end = lseek(fd_, 0, SEEK_END);
  const ssize_t count = end < 0 ? -1 : pwrite(fd_, entry.data(), entry.size(), end);
  if (count == static_cast<ssize_t>(entry.size())) return absl::OkStatus();
  if (end >= 0 && ftruncate(fd_, end) != 0) return absl::ErrnoToStatus(errno, "kept lines");
  return absl::ErrnoToStatus(count < 0 ? errno : ENOMEM, "keeping a line of metrics.jsonl");
}

absl::Status KeptLines::Clear() {
  if (fd_ < 0 || ftruncate(fd_, 0) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "clearing the kept lines of metrics.jsonl");
}

}  // namespace harmony::service
