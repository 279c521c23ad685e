#include "common/ipc/heartbeat.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace harmony::ipc {
namespace {

class HeartbeatTest : public ::testing::Test {
 protected:
  HeartbeatTest() : table_(*HeartbeatTable::Create(3)) {}
  ~HeartbeatTest() override { unsetenv(kHeartbeatVariable); }

  // As a spawned process takes it over: from a descriptor of its own.
  absl::StatusOr<Heartbeat> Inherit(const std::string& cell) {
    setenv(kHeartbeatVariable, (std::to_string(dup(table_.fd())) + ":" + cell).c_str(), 1);
    return Heartbeat::Inherited();
  }

  HeartbeatTable table_;
};

TEST_F(HeartbeatTest, ABeatIsSeenInItsOwnCellOnly) {
  auto heartbeat = Inherit("1");
  ASSERT_TRUE(heartbeat.ok()) << heartbeat.status();
  heartbeat->Beat();
  Heartbeat moved = *std::move(heartbeat);
  moved.Beat();
  EXPECT_EQ(table_.beats(0), 0u);
  EXPECT_EQ(table_.beats(1), 2u);
  EXPECT_EQ(table_.beats(2), 0u);
  table_.Reset(1);
  EXPECT_EQ(table_.beats(1), 0u);
}

TEST_F(HeartbeatTest, TheVariableNamesDescriptorAndCell) {
  EXPECT_EQ(table_.VariableFor(2), std::to_string(table_.fd()) + ":2");
}

TEST_F(HeartbeatTest, TheTableIsLaidOutAsItsPageSays) {
  Inherit("2")->Beat();
  unsigned char bytes[64 * 4 + 1];
  ASSERT_EQ(pread(table_.fd(), bytes, sizeof(bytes), 0), 64 * 4) << "all there is";
  EXPECT_EQ(std::memcmp(bytes, "HARMBEAT\1\0\0\0\3\0\0\0", 16), 0);
  EXPECT_EQ(bytes[64 * 3], 1);
}

TEST_F(HeartbeatTest, TheTableCanNeitherGrowNorShrink) {
  EXPECT_NE(ftruncate(table_.fd(), 64), 0);
  EXPECT_NE(ftruncate(table_.fd(), 4096), 0);
}

TEST_F(HeartbeatTest, WhereNobodyWatchesABeatGoesNowhere) {
  unsetenv(kHeartbeatVariable);
  auto heartbeat = Heartbeat::Inherited();
  ASSERT_TRUE(heartbeat.ok());
  heartbeat->Beat();
}

TEST_F(HeartbeatTest, WhatIsNoCellOfSuchATableIsRefused) {
  for (const char* bad : {"", "x", "1", "1:", ":1", "1:x", "-1:2", "987:0"}) {
    setenv(kHeartbeatVariable, bad, 1);
    EXPECT_EQ(Heartbeat::Inherited().status().code(), absl::StatusCode::kFailedPrecondition) << bad;
  }
  EXPECT_EQ(Inherit("3").status().code(), absl::StatusCode::kDataLoss);
  const char other_version = 2;
  ASSERT_EQ(pwrite(table_.fd(), &other_version, 1, 8), 1);
  EXPECT_EQ(Inherit("0").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace harmony::ipc
