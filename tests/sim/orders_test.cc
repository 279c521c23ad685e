// What lanes and waits order by themselves, however late each command is: the simulator's own
// checks see only what its durations bring about. Random models and plans from seeds. A failure
// prints its seed and how to run it alone:
//
//   build/tests/orders_test --first_seed=S --seeds=1

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <utility>

#include "common/command/lane_kinds.h"
#include "gtest/gtest.h"
#include "tests/sim/command_orders.h"
#include "tests/sim/command_stream.h"
#include "tests/sim/random_case.h"
#include "tests/support/arguments.h"
#include "tests/support/sanitized.h"

namespace harmony::sim {
namespace {

uint64_t first_seed = 1;
uint64_t seeds = testing_support::kSanitized ? 150 : 1'500;

std::string Replay(uint64_t seed) {
  return absl::StrCat("seed ", seed, "\nreplay: orders_test --first_seed=", seed, " --seeds=1");
}

TEST(OrdersTest, WaitsOrderAllThatTouchTheSameBytesOrRecords) {
  int64_t commands = 0, conflicts = 0, failures = 0;
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    const CommandStream stream = MakeCommandStream(seed);
    ASSERT_EQ(stream.status, absl::OkStatus()) << Replay(seed);
    commands += static_cast<int64_t>(stream.commands.size());
    conflicts += static_cast<int64_t>(stream.conflicts.size());
    const auto found = FindUnordered(stream.commands, stream.lanes, stream.conflicts);
    if (!found) continue;
    ADD_FAILURE() << DebugString(stream.commands[found->later]) << "\nis not ordered after "
                  << DebugString(stream.commands[found->earlier]) << "\n"
                  << DebugString(stream.job.plan) << "\n"
                  << Replay(seed);
    if (++failures >= 5) break;
  }
  std::printf("%lld commands, %lld conflicts\n", static_cast<long long>(commands),
              static_cast<long long>(conflicts));
}

// By kind of lane: whose waits for whom.
struct Dropped {
  int64_t waits = 0;
  int64_t implied = 0;  // by the lane's order and the other waits
  int64_t found = 0;    // else; without it two commands that touch the same are not ordered
};
using DroppedByLanes = std::map<std::pair<command::LaneKind, command::LaneKind>, Dropped>;

// Each wait for a gradient's buffer, or for a sum, made one for the copy before the one that frees
// it or brings it. By what is awaited.
void DropWaitsOnTheWay(CommandStream& stream, size_t command, const CommandOrders& orders,
                       std::array<Dropped, 2>& rows) {
  auto* task = std::get_if<command::ComputeTask>(&stream.commands[command].body);
  if (task == nullptr) return;
  Dropped& row = rows[static_cast<size_t>(task->awaited)];
  for (command::SemaphoreWait& wait : task->gradient_waits) {
    ++row.waits;
    if (orders.ImpliedAtStart(command, wait)) {
      ++row.implied;
      continue;
    }
    --wait.value;
    stream.conflicts = ConflictsOf(AccessesOf(stream.job.model, stream.job.plan, stream.commands));
    row.found += FindUnordered(stream.commands, stream.lanes, stream.conflicts).has_value();
    ++wait.value;
  }
  stream.conflicts = ConflictsOf(AccessesOf(stream.job.model, stream.job.plan, stream.commands));
}

void DropEachWait(CommandStream& stream, DroppedByLanes& table,
                  std::array<Dropped, 2>& on_the_way) {
  const command::LaneTable lanes(static_cast<int>(stream.job.plan.devices.size()));
  const auto kind = [&](uint32_t lane) { return lanes.LaneAt(static_cast<int>(lane)).kind; };
  const std::vector<command::Command> whole = stream.commands;
  const CommandOrders orders(whole, stream.lanes);
  for (size_t c = 0; c < whole.size(); ++c) {
    const command::CommandHeader& header = whole[c].header;
    for (size_t w = 0; w < header.waits.size(); ++w) {
      Dropped& row = table[{kind(header.lane), kind(header.waits[w].semaphore)}];
      ++row.waits;
      if (orders.Implied(c, w)) {
        ++row.implied;
        continue;
      }
      auto& waits = stream.commands[c].header.waits;
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
      row.found += FindUnordered(stream.commands, stream.lanes, stream.conflicts).has_value();
      waits = header.waits;
    }
    DropWaitsOnTheWay(stream, c, orders, on_the_way);
  }
}

// So the test above would see a dispatcher that forgets a wait, of whatever kind.
TEST(OrdersTest, ADroppedWaitOfEachKindIsFound) {
  constexpr size_t kMostCommands = 300;
  DroppedByLanes table;
  std::array<Dropped, 2> on_the_way;
  // Enough for several waits of each kind; fewer than the test above has, for each drop looks at
  // all.
  const uint64_t most = seeds < 150 ? seeds : std::max<uint64_t>(seeds / 10, 100);
  for (uint64_t seed = first_seed; seed < first_seed + most; ++seed) {
    CommandStream stream = MakeCommandStream(seed);
    ASSERT_EQ(stream.status, absl::OkStatus()) << Replay(seed);
    if (stream.commands.size() > kMostCommands) continue;
    if (FindUnordered(stream.commands, stream.lanes, stream.conflicts)) continue;
    DropEachWait(stream, table, on_the_way);
  }
  for (const auto& [lanes, row] : table) {
    std::printf("%-12s waits for %-12s: %6lld, implied %6lld, found %6lld, harmless %lld\n",
                TraitsOf(lanes.first).name, TraitsOf(lanes.second).name,
                static_cast<long long>(row.waits), static_cast<long long>(row.implied),
                static_cast<long long>(row.found),
                static_cast<long long>(row.waits - row.implied - row.found));
  }
  for (const Dropped& row : on_the_way) {
    std::printf("gradients wait for %s: %lld, implied %lld, found %lld\n",
                &row == on_the_way.data() ? "copies out" : "sums of other devices",
                static_cast<long long>(row.waits), static_cast<long long>(row.implied),
                static_cast<long long>(row.found));
  }
  if (seeds < 150) return;  // a replay
  for (const Dropped& row : on_the_way) {
    EXPECT_GT(row.found, 0);
    EXPECT_EQ(row.found, row.waits - row.implied);
  }
  using enum command::LaneKind;
  for (const auto& lanes :
       {std::pair(kCompute, kH2DBulk), std::pair(kCompute, kH2DStream), std::pair(kCompute, kP2P),
        std::pair(kCompute, kD2H), std::pair(kH2DBulk, kCompute), std::pair(kH2DStream, kCompute),
        std::pair(kH2DStream, kD2H), std::pair(kH2DStream, kHostIo), std::pair(kD2H, kCompute),
        std::pair(kD2H, kHostCompute), std::pair(kP2P, kCompute), std::pair(kHostCompute, kD2H),
        std::pair(kH2DBulk, kHostCompute), std::pair(kHostIo, kHostCompute)}) {
    EXPECT_GT(table[lanes].found, 0)
        << TraitsOf(lanes.first).name << " waits for " << TraitsOf(lanes.second).name;
  }
}

// Commands of one lane take far longer than the dispatcher was told.
class SlowLane : public dispatch::CostModel {
 public:
  SlowLane(const dispatch::CostModel& modelled, int lane) : modelled_(modelled), lane_(lane) {}
  Nanos Duration(const command::Command& command) const override {
    const Nanos modelled = modelled_.Duration(command);
    // Commands that are issued, and not only planned, bear what is expected of them.
    const bool runs = command.header.expected > Nanos();
    const bool slow = runs && static_cast<int>(command.header.lane) == lane_;
    return Nanos(modelled.count() * (slow ? kFactor : 1));
  }
  plan::CoreSharing Cores() const override { return modelled_.Cores(); }

 private:
  static constexpr int64_t kFactor = 1000;
  const dispatch::CostModel& modelled_;
  const int lane_;
};

// A lane that lags behind by whole groups, and deaths meanwhile.
TEST(OrdersTest, NothingIsLostWhenCopiesOutOfADeviceLagFarBehind) {
  int failures = 0;
  for (uint64_t seed = first_seed; seed < first_seed + seeds && failures < 5; ++seed) {
    RandomCase job = MakeCaseWithoutFaults(seed);
    job.options.kills = static_cast<int>(seed % 4);
    job.options.fault_events = 400;
    const int devices = static_cast<int>(job.plan.devices.size());
    for (int device = 0; device < devices; ++device) {
      const int lane = command::LaneTable(devices).IndexOf({command::LaneKind::kD2H, device});
      const SimResult result =
          Simulate(job.model, job.plan, SlowLane(*job.costs, lane), job.options);
      if (result.status.ok()) continue;
      ADD_FAILURE() << "slow: d2h of device " << device << ": " << result.status << "\n"
                    << DebugString(job.plan) << "\n"
                    << Replay(seed);
      ++failures;
    }
  }
}

}  // namespace
}  // namespace harmony::sim

int main(int argc, char** argv) {
  return harmony::testing_support::RunAllTests(
      argc, argv,
      {{.name = "first_seed", .number = &harmony::sim::first_seed},
       {.name = "seeds", .number = &harmony::sim::seeds}});
}
