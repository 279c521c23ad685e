#include "common/ipc/fd_passing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace harmony::ipc {
namespace {

absl::Status SetCloseOnExec(int fd, bool on) {
  const int flags = fcntl(fd, F_GETFD);
  if (flags < 0 || fcntl(fd, F_SETFD, on ? flags | FD_CLOEXEC : flags & ~FD_CLOEXEC) < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("descriptor ", fd));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FromEnvironment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') {
    return absl::FailedPreconditionError(absl::StrCat(
        name, " is not set: this program is started by 'harmony up' or 'harmony run'"));
  }
  return std::string(text);
}

absl::StatusOr<UniqueFd> TakeInherited(const char* name, int fd) {
  if (absl::Status status = SetCloseOnExec(fd, true); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", status.message()));
  }
  return UniqueFd(fd);
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = other.Release();
  }
  return *this;
}

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::Status AllowInheritance(int fd) { return SetCloseOnExec(fd, false); }

std::string FormatDeviceFds(const std::vector<std::pair<int, int>>& device_and_fd) {
  return absl::StrJoin(device_and_fd, ",", absl::PairFormatter(":"));
}

absl::StatusOr<std::vector<std::pair<int, int>>> ParseDeviceFds(absl::string_view text) {
  std::vector<std::pair<int, int>> result;
  for (absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(item, ':');
    std::pair<int, int> entry;
    if (!absl::SimpleAtoi(parts.first, &entry.first) ||
        !absl::SimpleAtoi(parts.second, &entry.second) || entry.first < 0 || entry.second < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(kDeviceFdsVariable, ": '", item, "' is not device:descriptor"));
    }
    result.push_back(entry);
  }
  return result;
}

absl::StatusOr<UniqueFd> InheritedFd(const char* variable) {
  HARMONY_ASSIGN_OR_RETURN(const std::string text, FromEnvironment(variable));
  int fd = -1;
  if (!absl::SimpleAtoi(text, &fd) || fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(variable, ": '", text, "' is not a descriptor"));
  }
  return TakeInherited(variable, fd);
}

absl::StatusOr<UniqueFd> InheritedSegmentFd() { return InheritedFd(kSegmentFdVariable); }

absl::StatusOr<std::vector<DeviceFd>> InheritedDeviceFds() {
  HARMONY_ASSIGN_OR_RETURN(const std::string text, FromEnvironment(kDeviceFdsVariable));
  HARMONY_ASSIGN_OR_RETURN(const auto entries, ParseDeviceFds(text));
  std::vector<DeviceFd> result;
  for (const auto& [device, fd] : entries) {
    HARMONY_ASSIGN_OR_RETURN(UniqueFd owned, TakeInherited(kDeviceFdsVariable, fd));
    result.push_back({device, std::move(owned)});
  }
  return result;
}

absl::StatusOr<AnswerSocket> MakeAnswerSocket() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "making a socket");
  }
  return AnswerSocket{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

absl::Status SendAnswer(int socket, absl::string_view text, int fd) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(text.size())) return absl::OkStatus();
  return absl::ErrnoToStatus(sent < 0 ? errno : EMSGSIZE, "sending an answer");
}

absl::StatusOr<Answer> ReceiveAnswer(int socket) {
  Answer answer;
  answer.text.resize(kMostAnswer);
  iovec part{answer.text.data(), answer.text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return absl::ErrnoToStatus(errno, "waiting for an answer");
  if (received == 0) return absl::UnavailableError("ended without an answer");
  answer.text.resize(static_cast<size_t>(received));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    answer.fd = UniqueFd(fd);
  }
  if ((message.msg_flags & MSG_TRUNC) == 0) return answer;
  return absl::InternalError("an answer is longer than expected");
}

absl::StatusOr<UniqueFd> CreateSealedMemory(const std::string& name, Bytes size,
                                            absl::string_view what) {
  if (what.empty()) what = name;
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", what));
  if (ftruncate(fd.get(), size.count()) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("sizing ", what, " to ", size.count()));
  }
  return fd;
}

absl::StatusOr<UniqueFd> CreateDeviceRegion(int device, Bytes size) {
  return CreateSealedMemory(absl::StrCat("harmony-device-", device), size);
}

absl::StatusOr<MappedRegion> MappedRegion::Map(int fd, Bytes size, bool writable) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, "mapping shared memory");
  if (size == Bytes()) size = Bytes(info.st_size);
  if (size <= Bytes() || info.st_size < size.count()) {
    return absl::DataLossError(
        absl::StrCat("shared memory has ", info.st_size, " bytes, expected ", size.count()));
  }
  void* address =
      mmap(nullptr, static_cast<size_t>(size.count()),
           writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (address == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat("mapping ", FormatBytesExact(size)));
  }
  madvise(address, static_cast<size_t>(size.count()), MADV_DONTDUMP);
  MappedRegion region;
  region.data_ = static_cast<std::byte*>(address);
  region.size_ = size;
  return region;
}

MappedRegion::MappedRegion(MappedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, Bytes())) {}

MappedRegion& MappedRegion::operator=(MappedRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedRegion::~MappedRegion() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_.count()));
}

}  // namespace harmony::ipc
