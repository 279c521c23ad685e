#include "worker/device/cpu_device.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/io/float_convert.h"
#include "worker/device/cpu_memory.h"

namespace harmony::worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(AllFiniteTest, FindsOneBadValueAnywhere) {
  std::vector<float> values(100'003);
  for (size_t i = 0; i < values.size(); ++i) values[i] = (i % 2 ? 1e38f : -1e-38f);
  EXPECT_TRUE(AllFinite(values.data(), std::ssize(values)));
  for (const size_t at : {size_t{0}, size_t{50'000}, values.size() - 1}) {
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      const float saved = values[at];
      values[at] = bad;
      EXPECT_FALSE(AllFinite(values.data(), std::ssize(values)));
      values[at] = saved;
    }
  }
}

TEST(CpuDeviceTest, TheWorkspaceIsCappedAndGivenBack) {
  auto device = CpuDevice::Create({.workspace = KiB(8)});
  ASSERT_TRUE(device.ok());
  {
    auto first = (*device)->Allocate(KiB(4));
    ASSERT_TRUE(first.ok());
    EXPECT_EQ((*first)->address().value() % kSlotAlignment, 0u);
    EXPECT_EQ((*device)->usage().current, KiB(4));
    const absl::Status full = (*device)->Allocate(KiB(5)).status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(full.message().find("5.00 KiB"), std::string::npos) << full;
  }
  EXPECT_EQ((*device)->usage().current, Bytes());
  EXPECT_EQ((*device)->usage().peak, KiB(4));
}

TEST(CpuDeviceTest, WritesZeroesAndReads) {
  CpuDevice device;
  const auto block = device.Allocate(KiB(1));
  ASSERT_TRUE(block.ok());
  const std::vector<float> ones(256, 1.0f);
  std::vector<float> back(256);
  ASSERT_TRUE(device.Write((*block)->address(), std::as_bytes(std::span(ones))).ok());
  device.Zero((*block)->address() + Bytes(4), Bytes(8));
  ASSERT_TRUE(device
                  .Read((*block)->address(),
                        absl::MakeSpan(reinterpret_cast<std::byte*>(back.data()), 1024))
                  .ok());
  EXPECT_EQ(back[0], 1);
  EXPECT_EQ(back[1], 0);
  EXPECT_EQ(back[2], 0);
  EXPECT_EQ(back[3], 1);
}

// In place, by several threads: no result may replace a number that is yet to be read.
TEST(CpuDeviceTest, RoundsToBf16WhereTheNumbersLie) {
  const auto device = CpuDevice::Create({.workspace = KiB(8), .compute_threads = 3});
  ASSERT_TRUE(device.ok());
  (*device)->PrepareThread();
  for (const int64_t count : {1, 63, 64, 1000, 16384, 16385, 300'001}) {
    for (const int64_t before : {0, 2, 256}) {  // bytes that the results begin before the numbers
      std::vector<float> numbers(static_cast<size_t>(count));
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = static_cast<float>(i % 1013) * 1.001f - 400.3f;
      }
      numbers.back() = kNan;
      std::vector<std::byte> memory(static_cast<size_t>(before) + numbers.size() * 4);
      std::memcpy(memory.data() + before, numbers.data(), numbers.size() * 4);
      const DeviceAddress at = AddressOf(memory.data());
      (*device)->Convert({at + Bytes(before), DType::kF32, {count}}, {at, DType::kBF16, {count}});
      for (size_t i = 0; i < numbers.size(); ++i) {
        uint16_t stored = 0;
        std::memcpy(&stored, memory.data() + 2 * i, sizeof(stored));
        ASSERT_EQ(stored, io::Bf16FromFloat(numbers[i])) << i << " of " << count << ", " << before;
      }
    }
  }
}

TEST(CpuDeviceTest, MovesNumbersOverThemselves) {
  CpuDevice device;
  std::vector<int64_t> numbers = {1, 2, 3, 4, 5};
  const DeviceAddress at = AddressOf(numbers.data());
  device.Convert({at + Bytes(8), DType::kI64, {4}}, {at, DType::kI64, {4}});
  EXPECT_EQ(numbers, (std::vector<int64_t>{2, 3, 4, 5, 5}));
}

TEST(CpuDeviceTest, ChecksNumbersOfSixteenBits) {
  struct Case {
    DType dtype;
    uint16_t number;
    bool finite;
  };
  // The largest finite number, infinity and a NaN of either type; what is infinite in the one is
  // not in the other.
  const Case cases[] = {{DType::kBF16, 0x7f7f, true},  {DType::kBF16, 0xff80, false},
                        {DType::kBF16, 0x7fc0, false}, {DType::kBF16, 0x7c00, true},
                        {DType::kF16, 0x7bff, true},   {DType::kF16, 0xfc00, false},
                        {DType::kF16, 0x7e00, false}};
  CpuDevice device;
  for (const Case& one : cases) {
    const std::vector<uint16_t> numbers = {0, 0x8000, one.number};
    device.CheckFinite({AddressOf(numbers.data()), one.dtype, {3}}, 0);
    EXPECT_EQ(device.Synchronize().value(), one.finite ? -1 : 0) << std::hex << one.number;
  }
}

TEST(CpuDeviceTest, SynchronizeNamesTheFirstCheckThatFoundSomething) {
  CpuDevice device;
  const std::vector<float> good(10, 1.0f), bad = {1, kNan};
  const std::vector<double> loss = {std::numeric_limits<double>::infinity()};
  const auto check = [&](const void* data, DType dtype, int64_t count, int tag) {
    device.CheckFinite({AddressOf(data), dtype, {count}}, tag);
  };
  check(good.data(), DType::kF32, 10, 0);
  EXPECT_EQ(device.Synchronize().value(), -1);
  check(good.data(), DType::kF32, 10, 0);
  check(loss.data(), DType::kF64, 1, 1);
  check(bad.data(), DType::kF32, 2, 2);
  EXPECT_EQ(device.Synchronize().value(), 1);
  EXPECT_EQ(device.Synchronize().value(), -1);
  check(bad.data(), DType::kF32, 1, 0);
  check(bad.data(), DType::kF32, 2, 1);
  EXPECT_EQ(device.Synchronize().value(), 1);
}

TEST(CpuDeviceTest, PreparesTheThreadThatCalls) {
  const auto device = CpuDevice::Create({.workspace = KiB(8), .compute_threads = 3});
  ASSERT_TRUE(device.ok());
  (*device)->PrepareThread();
  EXPECT_EQ(at::get_num_threads(), 3);
}

}  // namespace
}  // namespace harmony::worker
