#include "tests/fake_cuda/race_store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/fake_cuda/report.h"

namespace harmony::fake_cuda {
namespace {

constexpr uint64_t kVersion = 0xFA4E0001;

void Prepare(RaceStore& store) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&store.mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  store.version = kVersion;
}

RaceStore* Map(int fd, int flags) {
  void* const bytes =
      mmap(nullptr, sizeof(RaceStore), PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  if (bytes == MAP_FAILED) Die(absl::StrCat("no memory for races: ", strerror(errno)));
  return static_cast<RaceStore*>(bytes);
}

}  // namespace

RaceStore* OpenRaceStore(const std::string& path) {
  if (path.empty()) {
    RaceStore* const store = Map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
    Prepare(*store);
    return store;
  }
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  // One of those who come at once prepares it.
  struct stat status = {};
  if (fd < 0 || flock(fd, LOCK_EX) != 0 || fstat(fd, &status) != 0 ||
      (status.st_size == 0 && ftruncate(fd, sizeof(RaceStore)) != 0)) {
    Die(absl::StrCat("FAKE_CUDA: shared=", path, ": ", strerror(errno)));
  }
  if (status.st_size != 0 && status.st_size != sizeof(RaceStore)) {
    Die(absl::StrCat("FAKE_CUDA: shared=", path, ": is something else"));
  }
  RaceStore* const store = Map(fd, MAP_SHARED);
  if (store->version == 0) Prepare(*store);
  if (store->version != kVersion) {
    Die(absl::StrCat("FAKE_CUDA: shared=", path, ": is of another version"));
  }
  // The mapping keeps the file open, and its lock with it.
  flock(fd, LOCK_UN);
  close(fd);
  return store;
}

RaceStoreLock::RaceStoreLock(RaceStore& store) : store_(store) {
  if (pthread_mutex_lock(&store_.mutex) == EOWNERDEAD) pthread_mutex_consistent(&store_.mutex);
}

bool HasEnded(int pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  // One that nobody has waited for yet has ended, too: "PID (NAME) Z ...".
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text[name_end + 2] == 'Z';
}

}  // namespace harmony::fake_cuda
