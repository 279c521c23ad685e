// Memory in issue order: region ledger, device memory, gradient ring, arena records.

#include <vector>

#include "common/base/random.h"
#include "coordinator/dispatch/memory/arena_records.h"
#include "coordinator/dispatch/memory/device_memory.h"
#include "coordinator/dispatch/memory/gradient_ring.h"
#include "coordinator/dispatch/memory/region_ledger.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::dispatch {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

Users One(uint32_t semaphore, uint64_t value) {
  Users users;
  users.Add(semaphore, value, Nanos(static_cast<int64_t>(value)));
  return users;
}

TEST(RegionLedgerTest, NamesTheLastUsersOfWhatIsTaken) {
  RegionLedger ledger;
  EXPECT_TRUE(ledger.Hold(Bytes(0), Bytes(64)).waits.empty());
  EXPECT_TRUE(ledger.Hold(Bytes(64), Bytes(128)).waits.empty());
  EXPECT_FALSE(ledger.IsFree(Bytes(32), Bytes(96)));
  ledger.Release(Bytes(0), One(1, 5));
  ledger.Release(Bytes(64), One(2, 7));
  EXPECT_TRUE(ledger.IsFree(Bytes(0), Bytes(128)));
  const Users users = ledger.Hold(Bytes(32), Bytes(96));
  EXPECT_THAT(users.waits, ElementsAre(command::SemaphoreWait{1, 5}, command::SemaphoreWait{2, 7}));
  EXPECT_EQ(users.finish, Nanos(7));
  // What is left of the old pieces keeps its users; the new piece has its own.
  ledger.Release(Bytes(32), One(3, 1));
  EXPECT_THAT(ledger.Hold(Bytes(0), Bytes(64)).waits,
              ElementsAre(command::SemaphoreWait{1, 5}, command::SemaphoreWait{3, 1}));
  EXPECT_EQ(ledger.peak(), Bytes(128));
}

TEST(RegionLedgerTest, KeepsTheHighestValueOfASemaphore) {
  Users users = One(4, 9);
  users.Merge(One(4, 3));
  users.Merge(One(2, 1));
  EXPECT_THAT(users.waits, ElementsAre(command::SemaphoreWait{4, 9}, command::SemaphoreWait{2, 1}));
}

TEST(DeviceMemoryTest, NeighboursTakeTheTwoEnds) {
  DeviceMemory memory{Bytes(4096)};
  memory.BeginExecution();
  const int64_t a = memory.AddItem(Bytes(2048));
  memory.BeginExecution();
  const int64_t b = memory.AddItem(Bytes(1200)), c = memory.AddItem(Bytes(1600));
  memory.Admit();
  EXPECT_EQ(memory.offset(a), Bytes(0));
  ASSERT_TRUE(memory.admitted(b));
  EXPECT_EQ(memory.offset(b), Bytes(4096 - 1280));
  EXPECT_FALSE(memory.admitted(c));  // waits for a
  memory.Release(a, One(1, 1));
  memory.Admit();
  ASSERT_TRUE(memory.admitted(c));
  EXPECT_THAT(memory.waits(c).waits, ElementsAre(command::SemaphoreWait{1, 1}));
  EXPECT_TRUE(memory.waits(b).waits.empty());
}

// Whatever the sizes and the order of releases: no two held items overlap, and an execution gets
// its memory at the latest when all before it have been released.
TEST(DeviceMemoryTest, NeverOverlapsAndNeverLocksUp) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CounterRandom random(seed, 3);
    DeviceMemory memory{KiB(16)};
    struct Held {
      int64_t item;
      Bytes begin, end;
      int execution;
    };
    std::vector<Held> waiting, held;
    auto admit = [&] {
      memory.Admit();
      while (!waiting.empty() && memory.admitted(waiting.front().item)) {
        Held item = waiting.front();
        waiting.erase(waiting.begin());
        item.begin = memory.offset(item.item);
        item.end = item.begin + item.end;
        EXPECT_LE(item.end, KiB(16));
        for (const Held& other : held) {
          EXPECT_TRUE(item.end <= other.begin || other.end <= item.begin) << "seed " << seed;
        }
        held.push_back(item);
      }
    };
    for (int execution = 0; execution < 30; ++execution) {
      memory.BeginExecution();
      Bytes left = KiB(16);
      for (uint64_t i = 0; i <= random.Below(4); ++i) {
        const Bytes size = Bytes(
            static_cast<int64_t>(random.Below(left.count()) / kSlotAlignment * kSlotAlignment));
        left -= size;
        if (size.count() == 0) continue;
        waiting.push_back({memory.AddItem(size), Bytes(0), size, execution});
      }
      admit();
      while (!held.empty() && random.Below(3) > 0) {
        const size_t victim = random.Below(held.size());
        memory.Release(held[victim].item, One(1, 1));
        held.erase(held.begin() + static_cast<int64_t>(victim));
        admit();
      }
      // All before the first waiting item's execution are released: it must come in.
      if (waiting.empty()) continue;
      const int first = waiting.front().execution;
      for (size_t i = 0; i < held.size();) {
        if (held[i].execution >= first) {
          ++i;
          continue;
        }
        memory.Release(held[i].item, One(1, 1));
        held.erase(held.begin() + static_cast<int64_t>(i));
      }
      admit();
      EXPECT_TRUE(waiting.empty() || waiting.front().execution != first) << "seed " << seed;
    }
  }
}

TEST(GradientRingTest, WrapsAndWaitsForTheLastReaders) {
  GradientRing ring(Bytes(1000), Bytes(300));
  EXPECT_EQ(ring.Take({Bytes(200)})->slots.front(), Bytes(1000));
  EXPECT_FALSE(ring.Take({Bytes(200)}).has_value());
  EXPECT_EQ(ring.Take({Bytes(100)})->slots.front(), Bytes(1200));
  ring.Release(Bytes(1000), One(9, 3));
  const auto piece = ring.Take({Bytes(150)});
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->slots.front(), Bytes(1000));
  EXPECT_THAT(piece->waits.waits, ElementsAre(command::SemaphoreWait{9, 3}));
}

TEST(GradientRingTest, GivesAgainWhatWasGivenBackSlotBySlot) {
  GradientRing ring(Bytes(0), Bytes(300));
  const auto first = ring.Take({Bytes(100), Bytes(0), Bytes(100), Bytes(50)});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->slots.back(), Bytes(200));
  ring.Release(Bytes(0), One(9, 1));
  EXPECT_FALSE(ring.Take({Bytes(60), Bytes(60)}).has_value());
  ring.Release(Bytes(100), One(9, 2));
  const auto next = ring.Take({Bytes(60), Bytes(60)});  // while a slot of the first is still held
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->slots.back(), Bytes(60));
  EXPECT_THAT(next->waits.waits, ElementsAre(command::SemaphoreWait{9, 2}));
}

TEST(GradientRingTest, GivesItsWholeSizeWhenEmpty) {
  GradientRing ring(Bytes(0), Bytes(300));
  ring.Pin(Bytes(100), Bytes(200));
  EXPECT_FALSE(ring.Take({Bytes(300)}).has_value());
  ring.Release(Bytes(100), One(1, 1));
  EXPECT_EQ(ring.Take({Bytes(300)})->slots.front(), Bytes(0));
}

TEST(GradientRingTest, FindsThePlaceBetweenPinnedPieces) {
  GradientRing ring(Bytes(0), Bytes(300));
  ring.Pin(Bytes(200), Bytes(300));
  ring.Pin(Bytes(0), Bytes(100));
  ring.Pin(Bytes(110), Bytes(120));
  EXPECT_FALSE(ring.Take({Bytes(90)}).has_value());
  EXPECT_EQ(ring.Take({Bytes(80)})->slots.front(), Bytes(120));
  EXPECT_EQ(ring.Take({Bytes(4), Bytes(6)})->slots.back(), Bytes(104));
}

TEST(ArenaRecordsTest, AllThatOverwriteAPartOfAnObjectFreeItsRecordSideBySide) {
  const model::ModelSpec model = SmallModel();
  const command::ObjectTableLayout table(model, 2);
  ArenaRecords records(table, {});
  Users after;
  EXPECT_THAT(records.Place(9, Bytes(0), Bytes(100), 1, 1, after), ElementsAre(9));
  EXPECT_THAT(records.Place(10, Bytes(0), Bytes(50), 2, 4, after), UnorderedElementsAre(10, 9));
  EXPECT_THAT(records.Place(11, Bytes(60), Bytes(100), 3, 1, after), UnorderedElementsAre(11, 9));
  EXPECT_TRUE(after.waits.empty());
  // Either of them would free what it has committed, if that came first.
  EXPECT_THAT(records.Place(9, Bytes(200), Bytes(300), 1, 2, after), ElementsAre(9));
  EXPECT_THAT(after.waits,
              UnorderedElementsAre(command::SemaphoreWait{2, 4}, command::SemaphoreWait{3, 1}));
  // What is left of the old data: the record is the new data's, which must have taken it.
  Users rest;
  EXPECT_THAT(records.Place(12, Bytes(50), Bytes(60), 4, 1, rest), ElementsAre(12));
  EXPECT_THAT(rest.waits, ElementsAre(command::SemaphoreWait{1, 2}));
}

TEST(ArenaRecordsTest, FreesOnceWhatLiesOnBothSidesOfAnother) {
  const model::ModelSpec model = SmallModel();
  const command::ObjectTableLayout table(model, 2);
  ArenaRecords records(table, {});
  Users after;
  records.Place(9, Bytes(0), Bytes(100), 1, 1, after);
  records.Place(10, Bytes(40), Bytes(60), 2, 1, after);
  EXPECT_THAT(records.Place(11, Bytes(0), Bytes(100), 3, 1, after),
              UnorderedElementsAre(11, 9, 10));
  EXPECT_TRUE(after.waits.empty());
}

TEST(ArenaRecordsTest, ACopyWaitsForTheOneThatFreesItsRecordWhereverItPutsIt) {
  const model::ModelSpec model = SmallModel();
  const command::ObjectTableLayout table(model, 2);
  ArenaRecords records(table, {});
  Users after;
  records.Place(9, Bytes(0), Bytes(100), 1, 1, after);
  EXPECT_THAT(records.Place(10, Bytes(0), Bytes(100), 2, 4, after), UnorderedElementsAre(10, 9));
  EXPECT_TRUE(after.waits.empty());
  // Else (2, 4) could begin after it, and free what it has committed.
  EXPECT_THAT(records.Place(9, Bytes(300), Bytes(400), 1, 2, after), ElementsAre(9));
  EXPECT_THAT(after.waits, ElementsAre(command::SemaphoreWait{2, 4}));
  // Its own lane is in order.
  Users own;
  EXPECT_THAT(records.Place(11, Bytes(300), Bytes(400), 1, 3, own), UnorderedElementsAre(11, 9));
  records.Place(9, Bytes(500), Bytes(600), 1, 4, own);
  EXPECT_TRUE(own.waits.empty());
}

TEST(ArenaRecordsTest, KnowsTheClaimsOfTheTable) {
  const model::ModelSpec model = SmallModel();
  const command::ObjectTableLayout table(model, 2);
  std::vector<command::ObjectView> views(table.size());
  for (int i = 0; i < table.size(); ++i) views[i].key = table.KeyOf(i);
  const int gradient = table.IndexOf({command::ObjectKind::kGradient, 1, 0});
  views[gradient] = {table.KeyOf(gradient), Bytes(640), Bytes(64), 3, command::ObjectState::kClean};
  ArenaRecords records(table, views);
  Users after;
  EXPECT_THAT(records.Place(9, Bytes(600), Bytes(700), 0, 1, after),
              UnorderedElementsAre(9, gradient));
}

}  // namespace
}  // namespace harmony::dispatch
