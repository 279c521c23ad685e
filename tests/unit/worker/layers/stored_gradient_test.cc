#include "worker/layers/stored_gradient.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/io/float_convert.h"
#include "worker/device/cpu_device.h"
#include "worker/device/cpu_memory.h"

namespace harmony::worker {
namespace {

model::ModelSpec MixedModel() {
  model::ModelSpec model;
  model::ParamBlock block;
  const auto add = [&](int64_t elements, DType weight, model::TensorRole role) {
    model::TensorSpec tensor;
    tensor.shape = {elements};
    tensor.weight.dtype = weight;
    if (role == model::TensorRole::kStatistic) {
      tensor.gradient.dtype = tensor.moment.dtype = weight;
    }
    tensor.role = role;
    model::AddTensor(block, std::move(tensor));
  };
  using enum model::TensorRole;
  add(64, DType::kF32, kTrained);  // so that others begin at an odd slot
  add(3, DType::kBF16, kTrained);
  add(70, DType::kBF16, kTrained);
  add(5, DType::kF32, kTrained);
  add(2, DType::kI64, kStatistic);
  add(1000, DType::kBF16, kTrained);
  add(9, DType::kBF16, kFixed);
  model::AddBlock(model, std::move(block));
  return model;
}

// The sums of a block, in order of their places: a number for each, zero in the gaps.
class Sums {
 public:
  explicit Sums(const model::ParamBlock& block)
      : memory_(static_cast<size_t>(block.accumulator_bytes.count())) {
    for (const model::TensorSpec& tensor : block.tensors) {
      if (tensor.role == model::TensorRole::kFixed) continue;
      for (int64_t i = 0; i < tensor.elements; ++i) Set(tensor, i);
    }
  }
  DeviceAddress address() const { return AddressOf(memory_.data()); }
  template <typename T>
  T Get(Bytes offset, int64_t i) const {
    T value;
    std::memcpy(&value, memory_.data() + offset.count() + i * static_cast<int64_t>(sizeof(T)),
                sizeof(T));
    return value;
  }
  template <typename T>
  void Put(Bytes offset, int64_t i, T value) {
    std::memcpy(memory_.data() + offset.count() + i * static_cast<int64_t>(sizeof(T)), &value,
                sizeof(T));
  }
  static float NumberOf(int64_t i) { return 1.0f + 0.123f * static_cast<float>(i); }

 private:
  void Set(const model::TensorSpec& tensor, int64_t i) {
    if (tensor.accumulator.dtype == DType::kI64) {
      Put<int64_t>(tensor.accumulator.offset, i, 0x7fc000007fc00001 + i);
    } else {
      Put<float>(tensor.accumulator.offset, i, NumberOf(i));
    }
  }
  std::vector<std::byte> memory_;
};

TEST(StoredGradientTest, SumsAreRoundedAndMovedInTheirPlaceAndGapsStayZero) {
  model::ModelSpec model = MixedModel();
  model::StoreGradientsAs(DType::kBF16, model);
  const model::ParamBlock& block = model.blocks[0];
  Sums sums(block);
  CpuDevice device;
  StoreGradient(device, block, sums.address());
  for (size_t t = 0; t + 1 < block.tensors.size(); ++t) {
    const model::TensorSpec& tensor = block.tensors[t];
    const Bytes at = tensor.gradient.offset;
    for (int64_t i = 0; i < tensor.elements; ++i) {
      if (tensor.gradient.dtype == DType::kBF16) {
        ASSERT_EQ(sums.Get<uint16_t>(at, i), io::Bf16FromFloat(Sums::NumberOf(i))) << t << " " << i;
      } else if (tensor.gradient.dtype == DType::kF32) {
        ASSERT_EQ(sums.Get<float>(at, i), Sums::NumberOf(i));
      } else {
        ASSERT_EQ(sums.Get<int64_t>(at, i), 0x7fc000007fc00001 + i);
      }
    }
    const Bytes end = at + SizeOf(tensor.gradient.dtype) * tensor.elements;
    const Bytes next = block.tensors[t + 1].gradient.offset;
    for (Bytes gap = end; gap < next; gap += Bytes(1)) {
      ASSERT_EQ(sums.Get<uint8_t>(gap, 0), 0) << "behind tensor " << t;
    }
  }
}

TEST(StoredGradientTest, WhatIsStoredAsItIsAddedUpIsNotTouched) {
  const model::ModelSpec model = MixedModel();
  Sums sums(model.blocks[0]);
  const Sums before = sums;
  CpuDevice device;
  const std::vector<DeviceTensor> stored = StoreGradient(device, model.blocks[0], sums.address());
  EXPECT_EQ(stored.size(), 3u);  // fp32, int64 and fp32
  for (int64_t i = 0; i < model.blocks[0].accumulator_bytes.count(); ++i) {
    ASSERT_EQ(sums.Get<uint8_t>(Bytes(i), 0), before.Get<uint8_t>(Bytes(i), 0));
  }
}

// Tensors that no step changes, as masks, have no sums: whatever their types, nothing of them is
// added, and nothing beside the block is written to.
TEST(StoredGradientTest, AddingWritesToNothingButTheBlocksSums) {
  constexpr int64_t kBeside = 4096;
  for (const bool trained : {false, true}) {
    model::ModelSpec model;
    model::ParamBlock block;
    for (const DType type : {DType::kBool, DType::kI64, DType::kF32, DType::kBool}) {
      model::TensorSpec tensor;
      tensor.shape = {5};
      tensor.weight.dtype = tensor.gradient.dtype = tensor.moment.dtype = type;
      const bool fixed = !trained || type != DType::kF32;
      tensor.role = fixed ? model::TensorRole::kFixed : model::TensorRole::kTrained;
      model::AddTensor(block, std::move(tensor));
    }
    model::AddBlock(model, std::move(block));
    const int64_t size = model.blocks[0].accumulator_bytes.count();
    std::vector<float> from(static_cast<size_t>(size + kBeside) / sizeof(float), 2.0f);
    std::vector<float> to(from.size(), 1.0f);
    CpuDevice device;
    AddGradient(device, model.blocks[0], AddressOf(from.data()), AddressOf(to.data()));
    for (size_t i = 0; i < to.size(); ++i) {
      const bool added = trained && i < static_cast<size_t>(size) / sizeof(float);
      ASSERT_EQ(to[i], added ? 3.0f : 1.0f) << "number " << i;
    }
  }
}

// A sum of fp32 that bf16 cannot hold is found in what is stored.
TEST(StoredGradientTest, ASumThatOverflowsIsFound) {
  model::ModelSpec model = MixedModel();
  for (const DType type : {DType::kF32, DType::kBF16}) {
    model::StoreGradientsAs(type, model);
    Sums sums(model.blocks[0]);
    sums.Put<float>(model.blocks[0].tensors[5].accumulator.offset, 17, 3.4e38f);
    CpuDevice device;
    int tag = 0;
    for (const DeviceTensor& tensor : StoreGradient(device, model.blocks[0], sums.address())) {
      device.CheckFinite(tensor, tag++);
    }
    EXPECT_EQ(*device.Synchronize(), type == DType::kBF16 ? 4 : -1);
  }
}

}  // namespace
}  // namespace harmony::worker
