#include "coordinator/service/server_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace harmony::service {
namespace {

TEST(ServerLockTest, OneAtATimeAndStaleSocketsGo) {
  std::string pattern = (std::filesystem::temp_directory_path() / "lockXXXXXX").string();
  const std::string folder = mkdtemp(pattern.data()), socket = folder + "/c.sock";
  std::ofstream(socket) << "stale";
  {
    const auto lock = ServerLock::Acquire(socket);
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_FALSE(std::filesystem::exists(socket));
    std::ofstream(socket) << "in use";
    const auto second = ServerLock::Acquire(socket);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.status().message()), ::testing::HasSubstr(socket));
    EXPECT_TRUE(std::filesystem::exists(socket)) << "it is the holder's";
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_TRUE(ServerLock::Acquire(socket).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace harmony::service
