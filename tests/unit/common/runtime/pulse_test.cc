#include "common/runtime/pulse.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"

namespace harmony::runtime {
namespace {

TEST(WorkLimit, WorkMayLastAsLongAsItsLimit) {
  WorkLimit work(Seconds(120));
  EXPECT_FALSE(work.Exceeded(Seconds(1000))) << "none is under way";
  work.Begin(Seconds(1000));
  EXPECT_FALSE(work.Exceeded(Seconds(1119)));
  EXPECT_TRUE(work.Exceeded(Seconds(1120)));
  work.End();
  EXPECT_FALSE(work.Exceeded(Seconds(1121))) << "it ended after all";
}

TEST(WorkLimit, EachPieceHasItsOwnTime) {
  WorkLimit work(Seconds(120));
  work.Begin(Seconds(0));
  work.Begin(Seconds(100));
  EXPECT_FALSE(work.Exceeded(Seconds(219)));
  EXPECT_TRUE(work.Exceeded(Seconds(220)));
}

TEST(WorkLimit, APartThatIsDoneGivesTheNextItsOwnTime) {
  WorkLimit work(Seconds(120));
  work.Progress(Seconds(10));
  EXPECT_FALSE(work.Exceeded(Seconds(1000))) << "none is under way";
  work.Begin(Seconds(1000));
  work.Progress(Seconds(1100));
  EXPECT_FALSE(work.Exceeded(Seconds(1219)));
  EXPECT_TRUE(work.Exceeded(Seconds(1220)));
}

TEST(Pulse, BeatsFromItsConstructionOn) {
  auto table = ipc::HeartbeatTable::Create(1);
  ASSERT_TRUE(table.ok()) << table.status();
  setenv(ipc::kHeartbeatVariable, absl::StrCat(dup(table->fd()), ":0").c_str(), 1);
  auto heartbeat = ipc::Heartbeat::Inherited();
  unsetenv(ipc::kHeartbeatVariable);
  ASSERT_TRUE(heartbeat.ok()) << heartbeat.status();
  Pulse pulse(*std::move(heartbeat));
  UnwatchedWork work(&pulse);
  while (table->beats(0) < 2) std::this_thread::yield();
}

}  // namespace
}  // namespace harmony::runtime
