#include "coordinator/service/processes/process_handle.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace harmony::service {
namespace {

TEST(ProcessHandleTest, KillsAndConfirms) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  const auto handle = ProcessHandle::Open(child);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_FALSE(handle->HasExited());
  handle->Kill();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_TRUE(handle->HasExited());
  handle->Kill();  // of a process that is gone: nothing happens
  EXPECT_EQ(ProcessHandle::Open(child).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace harmony::service
