#include "common/rpc/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace harmony::rpc {
namespace {

using ::testing::HasSubstr;

class AddressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("HARMONY_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
    setenv("HOME", "/home/ann", 1);
  }
};

TEST_F(AddressTest, LooksInOrderAtOptionEnvironmentRuntimeFolderAndHome) {
  EXPECT_EQ(*ResolveSocketPath(""), "/home/ann/.harmony/coordinator.sock");
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(*ResolveSocketPath(""), "/run/user/7/harmony/coordinator.sock");
  setenv("HARMONY_SOCKET", "/s/a.sock", 1);
  EXPECT_EQ(*ResolveSocketPath(""), "/s/a.sock");
  EXPECT_EQ(*ResolveSocketPath("unix:/s/b.sock"), "/s/b.sock");
}

TEST_F(AddressTest, RefusesTcpByName) {
  for (const char* text : {"localhost:50051", "dns:host:1", "ipv4:127.0.0.1:80", "0.0.0.0:80"}) {
    const auto path = ResolveSocketPath(text);
    EXPECT_EQ(path.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(path.status().message()), HasSubstr("TLS")) << text;
  }
}

TEST_F(AddressTest, RefusesPathsTooLongForASocket) {
  const auto path = ResolveSocketPath("/" + std::string(200, 'x'));
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("at most 107"));
}

}  // namespace
}  // namespace harmony::rpc
