#include "coordinator/service/run/metrics_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace harmony::service {
namespace {

constexpr int64_t kBlock = 1 << 16;  // that is read at a time
constexpr int kLockTries = 100;
constexpr useconds_t kLockPauseMicros = 20'000;

// Two runs that write to one output_dir would tear each other's lines. File systems without locks
// are let pass.
absl::Status Lock(int fd, const std::string& path) {
  for (int i = 0; i < kLockTries; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return absl::OkStatus();
    usleep(kLockPauseMicros);
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": another run is writing to this output_dir"));
}

// The "step" of a line; nothing when it is no such object.
std::optional<int64_t> StepOf(absl::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

// The whole lines of a file, the last first. What follows the last end of a line is torn, and none.
class LinesFromEnd {
 public:
  LinesFromEnd(const io::File& file, int64_t size) : file_(file), begin_(size), end_(size) {}

  // The next line; nothing: there is none before.
  absl::StatusOr<std::optional<absl::string_view>> Next() {
    if (!std::exchange(started_, true)) {
      HARMONY_ASSIGN_OR_RETURN(end_, EndBefore(end_));
    }
    if (end_ == 0) return std::nullopt;
    line_end_ = end_;
    HARMONY_ASSIGN_OR_RETURN(end_, EndBefore(line_end_ - 1));
    return absl::string_view(text_).substr(static_cast<size_t>(end_ - begin_),
                                           static_cast<size_t>(line_end_ - 1 - end_));
  }
  // Where the line that Next gave ends, its end included.
  int64_t line_end() const { return line_end_; }

 private:
  // Behind the last end of a line before `position`; 0: there is none.
  absl::StatusOr<int64_t> EndBefore(int64_t position) {
    for (;;) {
      text_.resize(static_cast<size_t>(position - std::min(begin_, position)));
      const size_t found = text_.rfind('\n');
      if (found != std::string::npos) return begin_ + static_cast<int64_t>(found) + 1;
      if (begin_ == 0) return 0;
      HARMONY_RETURN_IF_ERROR(ReadMore(std::max(kBlock, static_cast<int64_t>(text_.size()))));
    }
  }
  absl::Status ReadMore(int64_t bytes) {
    bytes = std::min(bytes, begin_);
    std::string before(static_cast<size_t>(bytes), '\0');
    HARMONY_RETURN_IF_ERROR(file_.ReadAt(begin_ - bytes, before.data(), bytes));
    text_.insert(0, before);
    begin_ -= bytes;
    return absl::OkStatus();
  }

  const io::File& file_;
  std::string text_;  // of the file, from begin_ on
  int64_t begin_;
  int64_t end_;  // of what is left
  int64_t line_end_ = 0;
  bool started_ = false;
};

struct Kept {
  int64_t bytes = 0;
  int64_t last_step = 0;
  int64_t last_step_cut = 0;
};

// How much of the file stays. It is read from its end, for it may have the lines of years.
absl::StatusOr<Kept> Scan(const io::File& file, int64_t size, int64_t last_step_kept) {
  LinesFromEnd lines(file, size);
  Kept kept;
  int64_t damaged = 0;
  for (bool last = true;; last = false) {
    HARMONY_ASSIGN_OR_RETURN(const std::optional<absl::string_view> line, lines.Next());
    if (!line) break;
    const std::optional<int64_t> step = StepOf(*line);
    if (!step) {
      // A loss of power may have torn any of the last lines: with its end, but without its middle.
      if (!last) damaged = lines.line_end();
    } else if (*step <= last_step_kept) {
      kept.bytes = lines.line_end();
      kept.last_step = *step;
      return kept;
    } else if (kept.last_step_cut == 0) {
      kept.last_step_cut = *step;
    }
  }
  if (damaged == 0 || last_step_kept == 0) return kept;
  return absl::DataLossError(absl::StrCat(file.path(), ": the line that ends at byte ", damaged,
                                          " is damaged, and none of a step up to ", last_step_kept,
                                          " is whole: remove that line, or the file"));
}

}  // namespace

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path, int64_t last_step_kept) {
  ipc::UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return io::ErrnoStatus(errno, "open", path);
  HARMONY_RETURN_IF_ERROR(Lock(fd.get(), path));
  HARMONY_ASSIGN_OR_RETURN(const io::File written, io::File::OpenForReading(path));
  HARMONY_ASSIGN_OR_RETURN(const int64_t size, written.Size());
  HARMONY_ASSIGN_OR_RETURN(const Kept kept, Scan(written, size, last_step_kept));
  if (kept.bytes != size && ftruncate(fd.get(), static_cast<off_t>(kept.bytes)) != 0) {
    return io::ErrnoStatus(errno, "cut", path);
  }
  MetricsFile file(std::move(fd), path);
  file.size_ = kept.bytes;
  file.last_step_ = kept.last_step;
  file.last_step_cut_ = kept.last_step_cut;
  return file;
}

absl::Status MetricsFile::Append(int64_t step, absl::string_view json_line) {
  const std::string line = absl::StrCat(json_line, "\n");
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = pwrite(fd_.get(), line.data() + written, line.size() - written,
                                 static_cast<off_t>(size_ + static_cast<int64_t>(written)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io::ErrnoStatus(errno, "write", path_);
    written += static_cast<size_t>(count);
  }
  size_ += static_cast<int64_t>(line.size());
  last_step_ = step;
  return absl::OkStatus();
}

absl::Status MetricsFile::Sync() {
  if (fdatasync(fd_.get()) != 0) return io::ErrnoStatus(errno, "sync", path_);
  return absl::OkStatus();
}

}  // namespace harmony::service
