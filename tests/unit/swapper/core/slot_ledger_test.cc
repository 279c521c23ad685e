#include "swapper/core/slot_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace harmony::swapper {
namespace {

SlotRange Range(int device, int64_t offset, int64_t size) {
  return {device, Bytes(offset), Bytes(size)};
}

TEST(SlotLedgerTest, ReadersShareASource) {
  SlotLedger ledger;
  EXPECT_TRUE(ledger.Open(1, Range(-1, 0, 100), Range(0, 0, 100)).ok());
  EXPECT_TRUE(ledger.Open(2, Range(-1, 0, 100), Range(1, 0, 100)).ok());
}

TEST(SlotLedgerTest, RefusesWhateverOverlapsAWrite) {
  SlotLedger ledger;
  ASSERT_TRUE(ledger.Open(1, Range(-1, 0, 100), Range(0, 1000, 100)).ok());
  const absl::Status write = ledger.Open(2, Range(-1, 200, 100), Range(0, 1099, 100));
  EXPECT_EQ(write.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(write.message()), testing::HasSubstr("device 0, 100 bytes at 1000"));
  EXPECT_FALSE(ledger.Open(2, Range(0, 1050, 10), Range(-1, 5000, 10)).ok()) << "reads it";
  EXPECT_FALSE(ledger.Open(2, Range(1, 0, 10), Range(-1, 50, 10)).ok()) << "overwrites its source";
  EXPECT_TRUE(ledger.Open(2, Range(-1, 200, 100), Range(0, 1100, 100)).ok()) << "just behind it";
}

TEST(SlotLedgerTest, AClosedTransferIsForgotten) {
  SlotLedger ledger;
  ASSERT_TRUE(ledger.Open(1, Range(-1, 0, 100), Range(0, 0, 100)).ok());
  ledger.Close(1);
  EXPECT_TRUE(ledger.Open(2, Range(0, 0, 100), Range(-1, 0, 100)).ok());
}

TEST(SlotLedgerTest, RefusesACopyOntoItself) {
  SlotLedger ledger;
  EXPECT_FALSE(ledger.Open(1, Range(0, 0, 100), Range(0, 50, 100)).ok());
  EXPECT_TRUE(ledger.Open(1, Range(-1, 0, 100), Range(0, 50, 100)).ok()) << "nothing recorded";
}

}  // namespace
}  // namespace harmony::swapper
