#pragma once

// File descriptors that outlive processes: how the supervisor hands the segment and the device
// regions to those it spawns (inheritance, named in the environment), how a process that it asks
// hands one back, and the regions of sim devices themselves.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"

namespace harmony::ipc {

// Owns a descriptor; closes it at the end. -1: none. Movable.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();

 private:
  int fd_ = -1;
};

inline constexpr char kSegmentFdVariable[] = "HARMONY_SEGMENT_FD";  // "5"
inline constexpr char kDeviceFdsVariable[] = "HARMONY_DEVICE_FDS";  // "0:6,1:7", device:descriptor
// Of a file in memory in which a coordinator keeps what its successor needs (KeptLines); "8".
inline constexpr char kKeptLinesFdVariable[] = "HARMONY_KEPT_LINES_FD";

struct DeviceFd {
  int device = 0;
  UniqueFd fd;
};

// For the spawner, between fork and exec (or before a fork): lets the child inherit `fd`.
absl::Status AllowInheritance(int fd);
std::string FormatDeviceFds(const std::vector<std::pair<int, int>>& device_and_fd);

// For the spawned process: takes over what the environment names, and sets close-on-exec again.
// FailedPrecondition when the variable is missing or names no open descriptor. Call once.
absl::StatusOr<UniqueFd> InheritedFd(const char* variable);
absl::StatusOr<UniqueFd> InheritedSegmentFd();
absl::StatusOr<std::vector<DeviceFd>> InheritedDeviceFds();
absl::StatusOr<std::vector<std::pair<int, int>>> ParseDeviceFds(absl::string_view text);

// A socket between who asks and the process that it spawns for the answer: each message arrives
// whole. Both ends are close-on-exec.
struct AnswerSocket {
  UniqueFd asker, answerer;
};
absl::StatusOr<AnswerSocket> MakeAnswerSocket();
struct Answer {
  std::string text;
  UniqueFd fd;  // none when none was sent
};
// Sends one message of at most kMostAnswer bytes, with a descriptor when `fd` is not negative.
inline constexpr size_t kMostAnswer = 65536;
absl::Status SendAnswer(int socket, absl::string_view text, int fd = -1);
// Waits for it. Unavailable when the other end closed without an answer.
absl::StatusOr<Answer> ReceiveAnswer(int socket);

// An anonymous file of exactly `size` bytes that can neither grow nor shrink: nobody who maps it
// meets a SIGBUS because of others. Sparse until touched. `what`: how errors call it; empty:
// `name`.
absl::StatusOr<UniqueFd> CreateSealedMemory(const std::string& name, Bytes size,
                                            absl::string_view what = "");

// The memory of a sim device: sealed, so the cap is physical.
absl::StatusOr<UniqueFd> CreateDeviceRegion(int device, Bytes size);

// A shared, writable mapping of a whole descriptor; unmaps at the end. Movable. The descriptor may
// be closed afterwards. Not in core dumps: weights and data would fill the disk, and outlive the
// dead process anyway.
class MappedRegion {
 public:
  // `size` 0: the size of the file. DataLoss when the file is smaller than `size`.
  static absl::StatusOr<MappedRegion> Map(int fd, Bytes size = Bytes(), bool writable = true);
  MappedRegion() = default;
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&& other) noexcept;
  ~MappedRegion();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace harmony::ipc
