#include "coordinator/service/run/metrics_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace harmony::service {
namespace {

constexpr int64_t kMostMetricsBytes = int64_t{4} << 30;
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

struct Kept {
  size_t bytes = 0;
  int64_t last_step = 0;
  int64_t last_step_cut = 0;
};

// The step of the last whole line, if there is such a line behind what is kept.
int64_t LastStepCut(absl::string_view rest) {
  while (!rest.empty() && rest.back() != '\n') rest.remove_suffix(1);
  if (rest.empty()) return 0;
  rest.remove_suffix(1);
  const size_t begin = rest.rfind('\n');
  return StepOf(begin == absl::string_view::npos ? rest : rest.substr(begin + 1)).value_or(0);
}

// How much of the file stays.
absl::StatusOr<Kept> Scan(const std::string& text, const std::string& path,
                          int64_t last_step_kept) {
  Kept kept;
  while (kept.bytes < text.size()) {
    const size_t end = text.find('\n', kept.bytes);
    if (end == std::string::npos) return kept;  // torn
    const absl::string_view line(text.data() + kept.bytes, end - kept.bytes);
    const std::optional<int64_t> step = StepOf(line);
    if (!step) {
      // The last line may have been torn by a power loss, with its end but without its middle.
      if (end + 1 == text.size()) return kept;
      return absl::DataLossError(
          absl::StrCat(path, ": the line after step ", kept.last_step, " is damaged"));
    }
    if (*step > last_step_kept || *step <= kept.last_step) {
      kept.last_step_cut = LastStepCut(absl::string_view(text).substr(kept.bytes));
      return kept;
    }
    kept = {end + 1, *step, 0};
  }
  return kept;
}

}  // namespace

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path, int64_t last_step_kept) {
  ipc::UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return io::ErrnoStatus(errno, "open", path);
  HARMONY_RETURN_IF_ERROR(Lock(fd.get(), path));
  HARMONY_ASSIGN_OR_RETURN(const std::string text, io::ReadWholeFile(path, kMostMetricsBytes));
  HARMONY_ASSIGN_OR_RETURN(const Kept kept, Scan(text, path, last_step_kept));
  if (kept.bytes != text.size() && ftruncate(fd.get(), static_cast<off_t>(kept.bytes)) != 0) {
    return io::ErrnoStatus(errno, "cut", path);
  }
  MetricsFile file(std::move(fd), path);
  file.size_ = static_cast<int64_t>(kept.bytes);
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
