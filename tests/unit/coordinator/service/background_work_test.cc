#include "coordinator/service/background_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace harmony::service {
namespace {

int NiceOfThisThread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

TEST(BackgroundWorkTest, RunsAtALowPriorityAndLeavesTheCallersAlone) {
  BackgroundWork background;
  const int before = NiceOfThisThread();
  int nice = 0;
  EXPECT_EQ(background.Run([&] {
    nice = NiceOfThisThread();
    return absl::NotFoundError("nothing");
  }),
            absl::NotFoundError("nothing"));
  EXPECT_GT(nice, before);
  EXPECT_EQ(NiceOfThisThread(), before);
}

TEST(BackgroundWorkTest, WhatItThrowsIsAnError) {
  BackgroundWork background;
  for (int i = 0; i < 3; ++i) {  // more than may run at once
    const absl::Status status =
        background.Run([]() -> absl::Status { throw std::runtime_error("a loop of links"); });
    EXPECT_EQ(status, absl::InternalError("a loop of links"));
  }
}

TEST(BackgroundWorkTest, FewRunAtOnceAndTooManyAreTurnedAway) {
  BackgroundWork background;
  Mutex mutex;
  CondVar changed;
  int running = 0, most = 0, refused = 0;
  bool open = false;
  std::vector<std::thread> callers;
  for (int i = 0; i < 30; ++i) {
    callers.emplace_back([&] {
      const absl::Status status = background.Run([&] {
        MutexLock lock(mutex);
        most = std::max(most, ++running);
        while (!open) changed.Wait(mutex);
        --running;
        return absl::OkStatus();
      });
      MutexLock lock(mutex);
      if (absl::IsResourceExhausted(status)) ++refused;
      changed.NotifyAll();
    });
  }
  {
    MutexLock lock(mutex);
    while (refused < 12) changed.Wait(mutex);  // 30, less 2 that run and 16 that wait
    open = true;
  }
  changed.NotifyAll();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(refused, 12);
  EXPECT_LE(most, 2);
}

}  // namespace
}  // namespace harmony::service
