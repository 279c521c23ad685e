#include "client/launcher/child_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace harmony::client {
namespace {

using ::testing::HasSubstr;

class ChildProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "harmony-child.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    spec_.program = "/bin/sh";
    spec_.log_path = dir_ / "log";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Runs a shell script to its end; the wait status.
  int Run(const std::string& script) {
    spec_.arguments = {"-c", script};
    absl::StatusOr<Child> child = Spawn(spec_);
    EXPECT_TRUE(child.ok()) << child.status();
    if (!child.ok()) return -1;
    int status = 0;
    EXPECT_EQ(waitpid(child->pid, &status, 0), child->pid);
    return status;
  }
  std::string Log() {
    std::stringstream text;
    text << std::ifstream(spec_.log_path).rdbuf();
    return text.str();
  }

  std::filesystem::path dir_;
  ChildSpec spec_;
};

TEST_F(ChildProcessTest, EnvironmentIsAddedAndReplaced) {
  setenv("HARMONY_TEST_A", "old", 1);
  setenv("HARMONY_TEST_B", "kept", 1);
  spec_.environment = {{"HARMONY_TEST_A", "new"}};
  Run("echo $HARMONY_TEST_A $HARMONY_TEST_B; echo to stderr >&2");
  EXPECT_EQ(Log(), "new kept\nto stderr\n");
}

TEST_F(ChildProcessTest, OnlyNamedDescriptorsAreInherited) {
  ipc::UniqueFd named(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ipc::UniqueFd other(open("/dev/full", O_RDONLY));  // not close-on-exec, as from a careless parent
  spec_.inherited_fds = {named.get()};
  Run("ls -l /proc/$$/fd");
  EXPECT_THAT(Log(), HasSubstr(std::to_string(named.get()) + " -> /dev/zero"));
  EXPECT_THAT(Log(), HasSubstr("0 -> /dev/null"));
  EXPECT_THAT(Log(), ::testing::Not(HasSubstr("/dev/full")));
}

TEST_F(ChildProcessTest, EndsAreDescribed) {
  EXPECT_EQ(DescribeExit(Run("exit 3")), "exit code 3");
  EXPECT_EQ(DescribeExit(Run("kill -9 $$")), "signal 9 (Killed)");
}

TEST_F(ChildProcessTest, AMissingProgramIsAnErrorOfTheSpawn) {
  spec_.program = "/nowhere/program";
  absl::StatusOr<Child> child = Spawn(spec_);
  EXPECT_TRUE(absl::IsNotFound(child.status()));
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("/nowhere/program"));
}

}  // namespace
}  // namespace harmony::client
