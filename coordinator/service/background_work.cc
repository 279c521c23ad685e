#include "coordinator/service/background_work.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"

namespace harmony::service {
namespace {

// Each plan keeps a core busy for seconds, each call that waits for its turn a thread.
constexpr int kAtOnce = 2, kMostWaiting = 16;
// More than this process. Of a core that a worker wants, too, that leaves four tenths. With 5, a
// quarter, a submission took minutes on a machine that others kept busy, longer than callers wait.
constexpr int kNice = 2;

// What a call throws is its caller's to hear, and no end of this process.
absl::Status InThreadOfItsOwn(const std::function<absl::Status()>& work) {
  absl::Status status;
  const auto guarded = [&status](const auto& body) {
    try {
      body();
    } catch (const std::exception& error) {
      status = absl::InternalError(error.what());
    }
  };
  guarded([&] {
    std::thread([&] {
      // Of this thread alone, to the kernel. A thread cannot take it back, so it ends with the
      // work.
      const auto thread = static_cast<id_t>(syscall(SYS_gettid));
      setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + kNice);
      guarded([&] { status = work(); });
    }).join();
  });
  return status;
}

}  // namespace

absl::Status BackgroundWork::Run(const std::function<absl::Status()>& work) {
  MutexLock lock(mutex_);
  if (waiting_ >= kMostWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(rpc::kTooManyCalls, ": ", waiting_, " wait for a plan already; try again"));
  }
  ++waiting_;
  while (running_ >= kAtOnce) changed_.Wait(mutex_);
  --waiting_;
  ++running_;
  lock.Unlock();
  const absl::Status status = InThreadOfItsOwn(work);
  lock.Lock();
  --running_;
  changed_.NotifyOne();
  return status;
}

}  // namespace harmony::service
