#include "worker/device/sim_allocator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "worker/device/lent_places.h"

namespace harmony::worker {
namespace {

constexpr int64_t kSpan = 1 << 20;

class SimAllocatorTest : public ::testing::Test {
 protected:
  SimAllocatorTest() : span_(std::aligned_alloc(kSlotAlignment, kSpan), &std::free) {
    allocator_ = std::make_unique<SimAllocator>(span_.get(), Bytes(kSpan));
    allocator_->Activate();
  }
  ~SimAllocatorTest() override { allocator_->Deactivate(); }

  at::Tensor Allocate(int64_t bytes) { return at::empty({bytes}, at::kByte); }
  int64_t OffsetOf(const at::Tensor& tensor) {
    return static_cast<const char*>(tensor.const_data_ptr()) - static_cast<char*>(span_.get());
  }

  std::unique_ptr<void, void (*)(void*)> span_;
  std::unique_ptr<SimAllocator> allocator_;
};

TEST_F(SimAllocatorTest, TensorsLieInTheSpanOnSlotBoundaries) {
  const at::Tensor a = Allocate(100);
  const at::Tensor b = Allocate(1);
  EXPECT_EQ(OffsetOf(a), 0);
  EXPECT_EQ(OffsetOf(b), kSlotAlignment);
  EXPECT_EQ(allocator_->usage().current, Bytes(2 * kSlotAlignment));
}

TEST_F(SimAllocatorTest, BestFittingHoleIsTakenAndNeighboursCoalesce) {
  at::Tensor a = Allocate(4096);
  at::Tensor b = Allocate(kSlotAlignment);
  at::Tensor c = Allocate(1024);
  at::Tensor d = Allocate(kSlotAlignment);
  a.reset();
  c.reset();
  const at::Tensor e = Allocate(1000);  // c's hole fits better than a's
  EXPECT_EQ(OffsetOf(e), 4096 + kSlotAlignment);
  b.reset();
  const at::Tensor f = Allocate(4096 + kSlotAlignment);  // a and b together
  EXPECT_EQ(OffsetOf(f), 0);
}

// oneDNN's temporaries are freed by their address alone.
TEST_F(SimAllocatorTest, WhatIsOfferedStaysItsOwnersAndIsTakenOnceAtATime) {
  const at::Tensor owner = Allocate(4096);
  {
    LentPlaces places;
    places.Add(owner.data_ptr(), 4096, /*needed_at=*/0);
    ASSERT_TRUE(places.Recall(0));
    LentPlaces::Lending lending(places, /*last=*/0);
    EXPECT_EQ(OffsetOf(Allocate(4096)), 4096);  // not offered yet
    lending.Offer(owner.data_ptr());
    void* const temporary = c10::GetCPUAllocator()->raw_allocate(4096);
    EXPECT_EQ(temporary, owner.data_ptr());
    c10::GetCPUAllocator()->raw_deallocate(temporary);
    EXPECT_EQ(OffsetOf(Allocate(2048)), 4096);  // of another size
    const at::Tensor result = Allocate(4096);
    EXPECT_EQ(result.data_ptr(), owner.data_ptr());
    EXPECT_EQ(OffsetOf(Allocate(4096)), 4096);
  }
  EXPECT_EQ(OffsetOf(Allocate(4096)), 4096);
  EXPECT_EQ(allocator_->usage().current, Bytes(4096));
}

TEST_F(SimAllocatorTest, WhatIsFreedInTimeLiesInALentPlace) {
  const at::Tensor owner = Allocate(4096);
  LentPlaces places;
  places.Add(owner.data_ptr(), 4096, /*needed_at=*/5);
  at::Tensor late, early, more;
  {
    const LentPlaces::Lending lending(places, /*last=*/5);
    late = Allocate(1024);
  }
  {
    const LentPlaces::Lending lending(places, /*last=*/4);
    early = Allocate(1024);
    more = Allocate(4096);  // there is no room for it any more
  }
  EXPECT_EQ(OffsetOf(late), 4096);
  EXPECT_EQ(OffsetOf(early), 0);
  EXPECT_EQ(OffsetOf(more), 4096 + 1024);
  EXPECT_EQ(OffsetOf(Allocate(1024)), 4096 + 1024 + 4096);  // nothing is lent
  EXPECT_EQ(places.next_need(), 5);
  EXPECT_TRUE(places.Lends(early.const_data_ptr(), 5));
  EXPECT_FALSE(places.Lends(early.const_data_ptr(), 4));
  EXPECT_FALSE(places.Lends(late.const_data_ptr(), 5));
  EXPECT_TRUE(places.Recall(4));   // none of that time
  EXPECT_FALSE(places.Recall(5));  // something lies there
  std::thread([&] { early.reset(); }).join();
  EXPECT_TRUE(places.Recall(5));
  EXPECT_EQ(places.next_need(), LentPlaces::kNever);
  EXPECT_EQ(allocator_->usage().current, Bytes(4096 + 1024 + 4096));
}

TEST_F(SimAllocatorTest, BeyondTheCapIsAnErrorWithSizes) {
  at::Tensor a = Allocate(1000 * 1024);
  try {
    Allocate(100 * 1024);
    FAIL() << "no error";
  } catch (const c10::OutOfMemoryError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find("(102400 B) requested"), std::string::npos) << message;
    EXPECT_NE(message.find("(24576 B) free"), std::string::npos) << message;
    EXPECT_NE(message.find("(1048576 B)"), std::string::npos) << message;
  }
  a.reset();
  Allocate(kSpan);
}

TEST_F(SimAllocatorTest, PeakIsRememberedUntilReset) {
  Allocate(1 << 19);
  const at::Tensor small = Allocate(kSlotAlignment);
  EXPECT_EQ(allocator_->usage().peak, Bytes(1 << 19));
  EXPECT_EQ(allocator_->usage().current, Bytes(kSlotAlignment));
  allocator_->ResetPeak();
  EXPECT_EQ(allocator_->usage().peak, Bytes(kSlotAlignment));
}

TEST(SimAllocatorLifetimeTest, TensorsOfBeforeActivationFreeAsTheyWereAllocated) {
  at::Tensor before = at::empty({1000}, at::kFloat);
  std::unique_ptr<void, void (*)(void*)> span(std::aligned_alloc(kSlotAlignment, kSpan),
                                              &std::free);
  SimAllocator allocator(span.get(), Bytes(kSpan));
  allocator.Activate();
  before.reset();
  at::Tensor inside = at::empty({1000}, at::kFloat);
  allocator.Deactivate();
  EXPECT_EQ(allocator.usage().current, Bytes(4000).AlignUp(kSlotAlignment));
  inside.reset();
  EXPECT_EQ(allocator.usage().current, Bytes(0));
}

}  // namespace
}  // namespace harmony::worker
