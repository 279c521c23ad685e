#include "common/io/training_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/array_file.h"
#include "common/io/safetensors_writer.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::io {
namespace {

// A .npy file of version 1 as NumPy writes it.
std::string Npy(const std::string& descr, const std::string& shape, const std::string& data,
                const std::string& order = "False") {
  std::string header = absl::StrCat("{'descr': '", descr, "', 'fortran_order': ", order,
                                    ", 'shape': ", shape, ", }");
  header.append(117 - header.size() % 64, ' ').append("\n");
  std::string file("\x93NUMPY\x01\x00", 8);
  file.push_back(static_cast<char>(header.size() & 0xff));
  file.push_back(static_cast<char>(header.size() >> 8));
  return file + header + data;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

model::ModelSpec ImagesAndLabels() {
  model::ModelSpec model;
  model.inputs = {{{"images", DType::kF32, {2, 3}}, 0, {0}}, {{"labels", DType::kI64, {}}, 5, {1}}};
  return model;
}

class ArraysTest : public ::testing::Test {
 protected:
  ArraysTest() {
    std::vector<float> images(4 * 6);
    for (size_t i = 0; i < images.size(); ++i) images[i] = static_cast<float>(i);
    job_.data_inputs = {
        {"images", dir_.Write("images.npy", Npy("<f4", "(4, 2, 3)", BytesOf(images)))},
        {"labels",
         dir_.Write("labels.npy", Npy("<i8", "(4,)", BytesOf(std::vector<int64_t>{0, 1, 4, 3})))}};
  }
  std::string OpenError() {
    const auto data = OpenTrainingData(job_, model_);
    return std::string((data.ok() ? (*data)->Validate(2) : data.status()).message());
  }

  TempDir dir_;
  job::JobSpec job_;
  const model::ModelSpec model_ = ImagesAndLabels();
};

model::ModelSpec TokensAndLabels() {
  model::ModelSpec model;
  model.inputs = {{{"input_ids", DType::kI64, {3}}, 9, {0}},
                  {{"labels", DType::kI64, {3}}, 9, {1}}};
  model.labels_per_sample = 3;
  return model;
}

// Causal models of transformers shift labels themselves: were they shifted here too, the model
// would learn the token after the next one.
TEST(TokensTest, LabelsAreTheNextTokensWhoeverShiftsThem) {
  TempDir dir;
  job::JobSpec job;
  job.sequence_length = 3;
  job.data_path = dir.Write("tokens.bin", std::string("\1\2\3\4\5\6\7", 7));
  job.data_format = job::DataFormat::kTextBytes;
  const auto labels = [&](const model::ModelSpec& model) {
    std::vector<int64_t> ids(3), labels(3);
    std::byte* const places[] = {reinterpret_cast<std::byte*>(ids.data()),
                                 reinterpret_cast<std::byte*>(labels.data())};
    const auto data = OpenTrainingData(job, model);
    EXPECT_TRUE(data.ok() && (*data)->ReadSample(1, 0, places).ok()) << data.status();
    EXPECT_EQ(ids, (std::vector<int64_t>{4, 5, 6}));
    return labels;
  };
  model::ModelSpec model = TokensAndLabels();
  EXPECT_EQ(labels(model), (std::vector<int64_t>{5, 6, 7}));
  model.counted_labels = {1, 0, -100};
  EXPECT_EQ(labels(model), (std::vector<int64_t>{5, 6, 7}));
  model.counted_labels = {1, 1, -100};
  model.labels_per_sample = 2;
  EXPECT_EQ(labels(model), (std::vector<int64_t>{4, 5, 6}));
  model.counted_labels->first = 2;  // only the last one counts
  model.labels_per_sample = 1;
  EXPECT_EQ(labels(model), (std::vector<int64_t>{5, 6, 7}));
}

TEST_F(ArraysTest, WhatIsDerivedIsNotAskedOfTheDataAndIgnoredLabelsPass) {
  model::ModelSpec model = model_;
  model.inputs.insert(model.inputs.begin(),
                      {{"keys", DType::kI64, {}}, 0, {0}, model::InputSource::kSampleKeys});
  model.inputs[2].ignored = -100;
  job_.data_inputs["labels"] =
      dir_.Write("masked.npy", Npy("<i8", "(4,)", BytesOf(std::vector<int64_t>{0, -100, 4, -1})));
  const auto data = OpenTrainingData(job_, model);
  ASSERT_TRUE(data.ok()) << data.status();
  const std::string error((*data)->Validate(2).message());
  EXPECT_NE(error.find("sample 3 has -1 at position 0, which is not in [0, 5) nor -100"),
            std::string::npos)
      << error;
  int64_t key = 77, label = 0;
  std::vector<float> image(6);
  std::byte* const places[] = {reinterpret_cast<std::byte*>(&key),
                               reinterpret_cast<std::byte*>(image.data()),
                               reinterpret_cast<std::byte*>(&label)};
  ASSERT_TRUE((*data)->ReadSample(1, 0, places).ok());
  EXPECT_EQ(label, -100);
  EXPECT_EQ(key, 77);
}

TEST_F(ArraysTest, SamplesAreReadInputByInput) {
  const auto data = OpenTrainingData(job_, model_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE((*data)->Validate(4).ok());
  EXPECT_EQ((*data)->sample_count(), 4);
  std::vector<float> image(6);
  int64_t label = -1;
  std::byte* const places[] = {reinterpret_cast<std::byte*>(image.data()),
                               reinterpret_cast<std::byte*>(&label)};
  ASSERT_TRUE((*data)->ReadSample(2, 0, places).ok());
  EXPECT_EQ(image, (std::vector<float>{12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(label, 4);
}

TEST_F(ArraysTest, TheFingerprintChangesWithAnyOfTheFiles) {
  const DataFingerprint before = *(*OpenTrainingData(job_, model_))->Fingerprint();
  dir_.Write("labels.npy", Npy("<i8", "(4,)", BytesOf(std::vector<int64_t>{0, 1, 4, 2})));
  const DataFingerprint after = *(*OpenTrainingData(job_, model_))->Fingerprint();
  EXPECT_EQ(before.bytes, after.bytes);
  EXPECT_NE(before.hash, after.hash);
}

TEST_F(ArraysTest, ATensorOfASafetensorsFileIsAnArrayToo) {
  const std::string path = dir_.File("labels.safetensors");
  auto writer = SafetensorsWriter::Create(path, {{"labels", DType::kI64, {4}}});
  ASSERT_TRUE(writer.ok());
  const std::vector<int64_t> labels = {3, 2, 1, 0};
  ASSERT_TRUE(writer
                  ->WriteBytes("labels", {reinterpret_cast<const std::byte*>(labels.data()),
                                          labels.size() * sizeof(int64_t)})
                  .ok());
  ASSERT_TRUE(writer->Finish().ok());
  job_.data_inputs["labels"] = path;
  EXPECT_EQ(OpenError(), "");
}

TEST_F(ArraysTest, WhatTheModelCannotReadIsNamed) {
  const std::string labels = dir_.File("labels.npy");
  const auto expect = [&](const std::string& file, const char* message) {
    dir_.Write("labels.npy", file);
    EXPECT_NE(OpenError().find(message), std::string::npos) << OpenError();
  };
  const std::string four = BytesOf(std::vector<int64_t>{0, 1, 2, 3});
  expect(Npy("<i8", "(4,)", BytesOf(std::vector<int64_t>{0, 1, 5, 3})),
         "sample 2 has 5 at position 0, which is not in [0, 5)");
  expect(Npy("<i8", "(4,)", BytesOf(std::vector<int64_t>{0, -1, 2, 3})), "sample 1 has -1");
  expect(Npy("<i8", "(2,)", four.substr(16)), "has 2 samples, but ");
  expect(Npy("<i4", "(4,)", four.substr(16)), "of I32, but the model reads [] of I64");
  expect(Npy("<i8", "(2, 2)", four), "holds samples of [2] numbers");
  expect(Npy("<c8", "(4,)", four), "is of NumPy's type '<c8'");
  expect(Npy(">i8", "(4,)", four), "is of NumPy's type '>i8'");
  expect(Npy("<i8", "(2, 2)", four, "True"), "is in Fortran order");
  expect(Npy("<i8", "()", four.substr(24)), "is a single number");
  expect(Npy("<i8", "(5,)", four), "it is cut or damaged");
  expect(Npy("<i8", "(4", four), "header that cannot be read");
  expect(Npy("<i8", "(-4,)", four), "header that cannot be read");
  expect(Npy("<i8", "(1099511627776, 1099511627776, 1099511627776)", four), "it is cut or damaged");
  expect(std::string("\x93NUMPY\x04\x00\x10\x00\x00\x00", 12), "of version 4");
  expect(std::string("\x93NUMPY\x01\x00\xff\xff{", 11), "");
  expect("0,1,2,3\n", "is neither a NumPy array (.npy) nor a safetensors file");
  expect("", "is neither");
  job_.data_inputs.erase("labels");
  EXPECT_NE(OpenError().find("'labels' is missing; the model reads images, labels"),
            std::string::npos)
      << OpenError();
  job_.data_inputs = {{"images", dir_.File("images.npy")}, {"labels", labels}, {"masks", labels}};
  dir_.Write("labels.npy", Npy("<i8", "(4,)", four));
  EXPECT_NE(OpenError().find("the model reads no 'masks'"), std::string::npos) << OpenError();
}

TEST_F(ArraysTest, AFileOfTokensIsNotForThisModel) {
  job_.data_inputs.clear();
  job_.data_path = dir_.Write("tokens", "abcdefgh");
  EXPECT_NE(OpenError().find("the model reads images, labels: give data: {inputs:"),
            std::string::npos)
      << OpenError();
}

// Seven tokens, two sequences of three.
class TokenDataTest : public ::testing::Test {
 protected:
  TokenDataTest() {
    job_.sequence_length = 3;
    job_.data_path = dir_.Write("tokens", std::string("\1\2\3\4\5\6\7", 7));
    model_.inputs = {{{"labels", DType::kI64, {3}}, 10, {1}},
                     {{"input_ids", DType::kI32, {3}}, 10, {0}}};
  }

  const TempDir dir_;
  job::JobSpec job_;
  model::ModelSpec model_;
};

TEST_F(TokenDataTest, LabelsAreTheNextTokensInTheTypeOfTheInput) {
  const auto data = OpenTrainingData(job_, model_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->sample_count(), 2);
  EXPECT_TRUE((*data)->Validate(1).ok());
  int64_t labels[3];
  int32_t ids[3];
  std::byte* const places[] = {reinterpret_cast<std::byte*>(labels),
                               reinterpret_cast<std::byte*>(ids)};
  ASSERT_TRUE((*data)->ReadSample(1, 0, places).ok());
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 3), (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(std::vector<int64_t>(labels, labels + 3), (std::vector<int64_t>{5, 6, 7}));
}

// Every token is a label as well.
TEST_F(TokenDataTest, TokensAreHeldAgainstTheBoundsOfBothInputs) {
  const auto refused = [&](int64_t labels_below, int64_t ids_below) {
    model_.inputs[0].values_below = labels_below;
    model_.inputs[1].values_below = ids_below;
    return std::string((*OpenTrainingData(job_, model_))->Validate(1).message());
  };
  for (const auto& [labels, ids] : {std::pair{7, 10}, {10, 7}, {7, 0}, {0, 7}}) {
    EXPECT_NE(refused(labels, ids).find("token 7 at position 6"), std::string::npos);
  }
  EXPECT_EQ(refused(0, 0), "");
  job_.sequence_length = 1;  // as of a model that was exported without one
  EXPECT_NE(std::string(OpenTrainingData(job_, model_).status().message())
                .find("exported without a length of sequences"),
            std::string::npos);
}

class MaskedTokensTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLength = 2000;
  static constexpr int64_t kMask = 99;
  MaskedTokensTest() {
    job_.sequence_length = kLength;
    job_.mask_probability = 0.15;
    job_.mask_token = kMask;
    std::string tokens;
    for (int64_t i = 0; i <= kLength; ++i) tokens.push_back(static_cast<char>(i % 90));
    job_.data_path = dir_.Write("tokens", tokens);
    model_.inputs = {{{"input_ids", DType::kI64, {kLength}}, 100, {0}},
                     {{"labels", DType::kI64, {kLength}}, 100, {1}}};
    model_.inputs[1].ignored = -100;
  }
  struct Sample {
    std::vector<int64_t> ids = std::vector<int64_t>(kLength);
    std::vector<int64_t> labels = std::vector<int64_t>(kLength);
    bool operator==(const Sample&) const = default;
  };
  Sample Read(uint64_t key) {
    Sample sample;
    std::byte* const places[] = {reinterpret_cast<std::byte*>(sample.ids.data()),
                                 reinterpret_cast<std::byte*>(sample.labels.data())};
    EXPECT_TRUE((*OpenTrainingData(job_, model_))->ReadSample(0, key, places).ok());
    return sample;
  }
  std::string OpenError() const {
    return std::string(OpenTrainingData(job_, model_).status().message());
  }

  TempDir dir_;
  job::JobSpec job_;
  model::ModelSpec model_;
};

TEST_F(MaskedTokensTest, ATokenIsAskedForInItsPlaceAndMostOfThoseAreMasked) {
  int asked = 0, masked = 0, kept = 0;
  for (uint64_t key = 0; key < 10; ++key) {
    const Sample sample = Read(key);
    for (size_t i = 0; i < kLength; ++i) {
      const auto token = static_cast<int64_t>(i % 90);
      if (sample.labels[i] == -100) {
        EXPECT_EQ(sample.ids[i], token);
        continue;
      }
      EXPECT_EQ(sample.labels[i], token);
      ++asked;
      masked += sample.ids[i] == kMask ? 1 : 0;
      kept += sample.ids[i] == token ? 1 : 0;
      EXPECT_TRUE(sample.ids[i] >= 0 && sample.ids[i] < 100);
    }
  }
  EXPECT_NEAR(asked / 20000.0, 0.15, 0.01);
  EXPECT_NEAR(static_cast<double>(masked) / asked, 0.8, 0.03);
  EXPECT_NEAR(static_cast<double>(kept) / asked, 0.1, 0.03);
}

TEST_F(MaskedTokensTest, AStepThatIsRepeatedAsksForTheSameAndAnotherOneForOthers) {
  EXPECT_EQ(Read(5), Read(5));
  EXPECT_NE(Read(5).labels, Read(6).labels);
}

TEST_F(MaskedTokensTest, AtLeastOneTokenIsAskedFor) {
  job_.mask_probability = 1e-9;
  for (uint64_t key = 0; key < 20; ++key) {
    const Sample sample = Read(key);
    EXPECT_EQ(std::count(sample.labels.begin(), sample.labels.end(), -100), kLength - 1);
  }
}

TEST_F(MaskedTokensTest, TheIgnoredLabelIsWrittenInTheTypeOfTheLabels) {
  constexpr int64_t kIgnored = -(int64_t{1} << 32);  // 0 in 32 bits
  model_.inputs[1].ignored = kIgnored;
  const Sample sample = Read(5);
  EXPECT_GT(std::count(sample.labels.begin(), sample.labels.end(), kIgnored), kLength / 2);
}

TEST_F(MaskedTokensTest, ModelsThatCannotBeAskedSoAreRefused) {
  job_.mask_token = 100;
  EXPECT_NE(OpenError().find("data.mask_token: is 100, but the model has tokens 0 to 99"),
            std::string::npos)
      << OpenError();
  model_.inputs[1].ignored.reset();
  EXPECT_NE(OpenError().find("the model's loss counts every label"), std::string::npos)
      << OpenError();
}

}  // namespace
}  // namespace harmony::io
