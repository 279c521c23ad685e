#include "client/launcher/runtime_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace harmony::client {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class RuntimeDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "harmony-runtime.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    paths_ = {name, name + "/state"};
  }
  void TearDown() override { fs::remove_all(paths_.dir); }

  // Another process that holds the lock until it is killed.
  pid_t HoldElsewhere() {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
      absl::StatusOr<RuntimeLock> lock = RuntimeLock::Acquire(paths_);
      char answer = lock.ok() ? 'y' : 'n';
      if (write(ready[1], &answer, 1) == 1) pause();
      _exit(1);
    }
    char answer = 0;
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    close(ready[0]);
    close(ready[1]);
    return child;
  }

  RuntimePaths paths_;
};

TEST_F(RuntimeDirTest, TheEnvironmentMayNameTheSocket) {
  setenv("HARMONY_SOCKET", "unix:/run/a/b.sock", 1);
  const absl::StatusOr<RuntimePaths> named = ResolveRuntimePaths("", "/state");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->socket(), "/run/a/b.sock");
  EXPECT_EQ(named->lock(), "/run/a/harmony.lock");
  EXPECT_EQ(ResolveRuntimePaths("/run/a/", "")->socket(), "/run/a/b.sock");
  EXPECT_EQ(ResolveRuntimePaths("/run/c", "")->socket(), "/run/c/coordinator.sock");
  setenv("HARMONY_SOCKET", "machine:1234", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ResolveRuntimePaths("", "").status()));
  unsetenv("HARMONY_SOCKET");
}

TEST_F(RuntimeDirTest, TheLockNamesItsHolderAndEndsWithIt) {
  EXPECT_EQ(RuntimeLockHolder(paths_), 0);
  pid_t holder = HoldElsewhere();
  EXPECT_EQ(RuntimeLockHolder(paths_), holder);
  absl::StatusOr<RuntimeLock> second = RuntimeLock::Acquire(paths_);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(holder)));
  EXPECT_FALSE(RemoveStaleFiles(paths_).ok());

  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  EXPECT_EQ(RuntimeLockHolder(paths_), 0);
  EXPECT_TRUE(fs::exists(paths_.lock()));
  EXPECT_TRUE(RuntimeLock::Acquire(paths_).ok());
  EXPECT_FALSE(fs::exists(paths_.lock())) << "it goes with the lock";
}

TEST_F(RuntimeDirTest, WhatSomethingListensOnIsNotStale) {
  const ipc::UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  paths_.socket().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const absl::Status removed = RemoveStaleFiles(paths_);
  EXPECT_TRUE(absl::IsFailedPrecondition(removed)) << removed;
  EXPECT_THAT(std::string(removed.message()), HasSubstr(paths_.socket()));
  EXPECT_TRUE(fs::exists(paths_.socket()));
}

TEST_F(RuntimeDirTest, StaleFilesAreRemoved) {
  for (const std::string& path : {paths_.socket(), paths_.attach_socket()}) {
    ASSERT_EQ(mknod(path.c_str(), S_IFSOCK | 0600, 0), 0);
  }
  for (const std::string& path : {paths_.socket_lock(), paths_.processes(), paths_.lock()}) {
    std::ofstream(path) << "x";
  }
  EXPECT_TRUE(RemoveStaleFiles(paths_).ok());
  EXPECT_TRUE(fs::is_empty(paths_.dir));
  EXPECT_TRUE(RemoveStaleFiles({"/nowhere/at/all", ""}).ok());
}

TEST_F(RuntimeDirTest, TheProcessListComesBackAsItWas) {
  EXPECT_TRUE(absl::IsNotFound(ReadProcessList(paths_).status()));
  ProcessList list{7, paths_.socket(), "sim:mem=1MiB", paths_.state_dir, true, {}};
  list.processes.push_back({"coordinator", -1, 12, 0, "c.log"});
  list.processes.push_back({"worker", 0, 0, 3, "w.log"});
  ASSERT_TRUE(WriteProcessList(paths_, list).ok());
  absl::StatusOr<ProcessList> read = ReadProcessList(paths_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->supervisor, 7);
  EXPECT_EQ(read->devices, "sim:mem=1MiB");
  ASSERT_EQ(read->processes.size(), 2u);
  EXPECT_EQ(read->processes[0].device, -1);
  EXPECT_EQ(read->processes[0].pid, 12);
  EXPECT_EQ(read->processes[1].device, 0);
  EXPECT_EQ(read->processes[1].incarnation, 3);

  std::ofstream(paths_.processes(), std::ios::trunc) << "{\"supervisor\": ";
  EXPECT_TRUE(absl::IsDataLoss(ReadProcessList(paths_).status()));
}

TEST_F(RuntimeDirTest, TheStateDirectoryIsThatOfTheProcessesThatAreUp) {
  EXPECT_EQ(PathsInUse(paths_).logs(), paths_.logs());
  ProcessList list;
  list.state_dir = "/given/at/up";
  ASSERT_TRUE(WriteProcessList(paths_, list).ok());
  EXPECT_EQ(PathsInUse(paths_).logs(), "/given/at/up/logs");
  EXPECT_EQ(PathsInUse(paths_).dir, paths_.dir);
}

TEST_F(RuntimeDirTest, PathsAreResolved) {
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  setenv("XDG_STATE_HOME", "/home/x/state", 1);
  setenv("HOME", "/home/x", 1);
  absl::StatusOr<RuntimePaths> paths = ResolveRuntimePaths("", "");
  ASSERT_TRUE(paths.ok());
  EXPECT_EQ(paths->socket(), "/run/user/7/harmony/coordinator.sock");
  EXPECT_EQ(paths->state_dir, "/home/x/state/harmony");

  unsetenv("XDG_RUNTIME_DIR");
  unsetenv("XDG_STATE_HOME");
  paths = ResolveRuntimePaths("", "");
  ASSERT_TRUE(paths.ok());
  EXPECT_EQ(paths->dir, "/home/x/.harmony");
  EXPECT_EQ(paths->state_dir, "/home/x/.local/state/harmony");

  paths = ResolveRuntimePaths("/a/b/", "");
  ASSERT_TRUE(paths.ok());
  EXPECT_EQ(paths->dir, "/a/b");
  EXPECT_EQ(paths->state_dir, "/a/b/state");
  absl::Status too_long = ResolveRuntimePaths("/" + std::string(100, 'a'), "").status();
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("107"));
}

TEST_F(RuntimeDirTest, PrivateDirectoriesOfDeadRunsAreSwept) {
  setenv("XDG_RUNTIME_DIR", paths_.dir.c_str(), 1);
  absl::StatusOr<std::string> dead = MakePrivateRuntimeDir();
  absl::StatusOr<std::string> young = MakePrivateRuntimeDir();  // no lock yet: not ours to judge
  absl::StatusOr<std::string> never = MakePrivateRuntimeDir();  // was killed before it had a lock
  ASSERT_TRUE(dead.ok() && young.ok() && never.ok());
  std::ofstream(*dead + "/harmony.lock") << "";
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(*never, long_ago);
  const std::string users = paths_.dir + "/harmony-run.results",
                    file = paths_.dir + "/harmony-run.log";
  fs::create_directory(users);
  std::ofstream(users + "/model.bin") << "weights";
  std::ofstream(file) << "notes";
  fs::last_write_time(users, long_ago);
  fs::last_write_time(file, long_ago);
  absl::StatusOr<std::string> next = MakePrivateRuntimeDir();
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(fs::exists(*dead));
  EXPECT_FALSE(fs::exists(*never));
  EXPECT_TRUE(fs::exists(*young));
  EXPECT_TRUE(fs::exists(*next));
  EXPECT_TRUE(fs::exists(users + "/model.bin")) << "it only has such a name";
  EXPECT_TRUE(DeadRuns().empty());
}

TEST_F(RuntimeDirTest, WhatIsNoSocketIsNotRemovedAsOne) {
  std::ofstream(paths_.socket()) << "weights";
  RemoveRuntimeFiles(paths_);
  EXPECT_TRUE(fs::exists(paths_.socket()));
}

TEST_F(RuntimeDirTest, TheLogsAreThoseOfTheProcesses) {
  for (const char* const name : {"worker-1.log", "worker-0.log", "worker-0.log.1", "notes"}) {
    std::ofstream(paths_.dir + "/" + name) << "x\n";
  }
  const std::string zero = paths_.dir + "/worker-0.log", one = paths_.dir + "/worker-1.log";
  EXPECT_EQ(LogFiles(paths_.dir, ""), (std::vector<std::string>{zero, one}));
  EXPECT_EQ(LogFiles(paths_.dir, "worker-1"), std::vector<std::string>{one});
  EXPECT_TRUE(LogFiles(paths_.dir, "worker").empty());
  EXPECT_TRUE(LogFiles(paths_.dir + "/none", "").empty());
}

TEST_F(RuntimeDirTest, TheTailOfAFile) {
  std::string path = paths_.dir + "/log";
  std::ofstream(path) << "one\ntwo\nthree\n";
  EXPECT_EQ(TailOfFile(path, 2), "two\nthree");
  EXPECT_EQ(TailOfFile(path, 9, 4), "two\nthree");
  EXPECT_EQ(TailOfFile(path + "x", 9), "");
}

}  // namespace
}  // namespace harmony::client
