#include "common/rpc/address.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
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

TEST_F(AddressTest, ReadsHostAndPort) {
  EXPECT_EQ(ParseHostPort("gpu7.lab:7443", "--listen")->ToString(), "gpu7.lab:7443");
  EXPECT_EQ(ParseHostPort("[::1]:0", "--listen")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:0", "--listen")->ToString(), "[::1]:0");
  for (const char* text : {"", "host", "host:", ":7443", "host:70000", "host:-1", "::1:7443",
                           "unix:/a/b:1", "host:7443x"}) {
    EXPECT_THAT(std::string(ParseHostPort(text, "--listen").status().message()),
                HasSubstr("HOST:PORT is expected"))
        << text;
  }
}

sockaddr_storage AddressOf(const char* text) {
  sockaddr_storage address = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1) << text;
    address.ss_family = AF_INET6;
  }
  return address;
}

TEST_F(AddressTest, OneMachineIsOneNetwork) {
  EXPECT_EQ(NetworkOf(AddressOf("10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(NetworkOf(AddressOf("::ffff:10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(NetworkOf(AddressOf("2001:db8:1:2:3:4:5:6")), "2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf(AddressOf("2001:db8:1:2::9")), "2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf(AddressOf("::1")), "::/64");
}

TEST_F(AddressTest, RefusesPathsTooLongForASocket) {
  const auto path = ResolveSocketPath("/" + std::string(200, 'x'));
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("at most 107"));
}

}  // namespace
}  // namespace harmony::rpc
