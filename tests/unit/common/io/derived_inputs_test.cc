#include "common/io/derived_inputs.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace harmony::io {
namespace {

// Labels of four tokens, of which the last three are looked at, and what is made from them.
model::ModelSpec Model() {
  model::ModelSpec model;
  model.labels_per_sample = 3;
  model.counted_labels = {0, 1, -100};
  model.inputs = {
      {{"labels", DType::kI32, {4}}, 9, {1}, model::InputSource::kData, -100},
      {{"keys", DType::kI64, {}}, 0, {0}, model::InputSource::kSampleKeys},
      {{"counts", DType::kI64, {2}}, 0, {1}, model::InputSource::kLabelCounts},
  };
  return model;
}

struct Batch {
  std::vector<int32_t> labels;
  std::vector<int64_t> keys, counts;

  absl::Status Fill(uint64_t seed, int64_t step) {
    keys.assign(labels.size() / 4, 0);
    counts.assign(labels.size() / 2, 0);
    std::byte* const places[] = {reinterpret_cast<std::byte*>(labels.data()),
                                 reinterpret_cast<std::byte*>(keys.data()),
                                 reinterpret_cast<std::byte*>(counts.data())};
    return FillDerivedInputs(Model(), seed, step, std::ssize(keys), places);
  }
};

TEST(DerivedInputsTest, LabelsThatCountAreCountedBySampleAndOverTheBatch) {
  Batch batch{{5, -100, 2, 3, 1, -100, -100, -100, -100, 4, 4, 0}, {}, {}};
  ASSERT_TRUE(batch.Fill(0, 0).ok());
  EXPECT_EQ(batch.counts, (std::vector<int64_t>{2, 5, 0, 5, 3, 5}));
}

TEST(DerivedInputsTest, ABatchInWhichNoneCountsIsRefusedByItsStep) {
  Batch batch{{5, -100, -100, -100}, {}, {}};
  const absl::Status status = batch.Fill(0, 6);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("the batch of step 7: all of its labels are -100"),
            std::string::npos)
      << status;
}

TEST(DerivedInputsTest, EachSampleOfEachStepHasANumberOfItsOwn) {
  std::set<int64_t> seen;
  for (int64_t step = 0; step < 20; ++step) {
    Batch batch{std::vector<int32_t>(4 * 8, 1), {}, {}};
    ASSERT_TRUE(batch.Fill(3, step).ok());
    seen.insert(batch.keys.begin(), batch.keys.end());
    EXPECT_EQ(static_cast<uint64_t>(batch.keys[5]), SampleKey(3, step, 5));
  }
  EXPECT_EQ(seen.size(), 160u);
  EXPECT_NE(SampleKey(4, 0, 0), SampleKey(3, 0, 0));
  // The same as in tests/export/test_noise_and_labels.py.
  EXPECT_EQ(SampleKey(42, 7, 5), 0xB7ACA4C152ACF572u);
}

}  // namespace
}  // namespace harmony::io
