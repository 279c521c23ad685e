#include "worker/device/workspace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "tests/unit/common/ipc/memory_flags.h"

namespace harmony::worker {
namespace {

TEST(WorkspaceTest, BeginsAtAHugePageAndHoldsItsBytes) {
  for (int64_t size : {int64_t{0}, int64_t{4096}, (int64_t{5} << 20) + 64}) {
    auto mapped = Workspace::Map(Bytes(size));
    ASSERT_TRUE(mapped.ok());
    const Workspace workspace = *std::move(mapped);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace.data()) % (2 << 20), 0u);
    EXPECT_EQ(workspace.size(), Bytes(size));
    std::memset(workspace.data(), 1, static_cast<size_t>(size));
    if (size > 0) {
      EXPECT_THAT(ipc::MemoryFlags(workspace.data()), ::testing::HasSubstr("dd"));
    }
  }
}

TEST(WorkspaceTest, MoreThanTheAddressSpaceIsAnError) {
  EXPECT_EQ(Workspace::Map(Bytes(int64_t{1} << 60)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace harmony::worker
