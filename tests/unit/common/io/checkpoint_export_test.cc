#include "common/io/checkpoint_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/io/checkpoint_details.h"
#include "common/io/checkpoint_manifest.h"
#include "common/io/checkpoint_reader.h"
#include "common/io/float_convert.h"
#include "common/io/hf_directory.h"
#include "common/io/hf_export.h"
#include "common/job/job_file.h"
#include "common/job/parameter_rules.h"
#include "common/model/families/causal_lm.h"
#include "tests/unit/common/io/model_values.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::io {
namespace {

using ::testing::HasSubstr;

// A checkpoint of a small model, as the host worker writes it.
class CheckpointExportTest : public ::testing::Test {
 protected:
  CheckpointExportTest() {
    config_ = absl::StrReplaceAll(*model::PresetConfigJson("qwen3-tiny"),
                                  {{"\"num_hidden_layers\": 6", "\"num_hidden_layers\": 2"},
                                   {"\"model_type\"", "\"dtype\": \"float32\", \"model_type\""}});
    job_.model_name_or_path = "qwen3-tiny";
    job_.data_path = "data";
    job_.output_dir = dir_.path();
    job_.sequence_length = 64;
    job_.max_steps = 3;
    model_ = *job::ModelOf(*model::ParseArchitecture(config_, "config"), job_);
    data_ = RandomValues(model_);
  }

  TensorValues Values() const { return TensorsOf(model_, data_); }
  // `source`: how the weights of the source were called and typed.
  void Write(const WeightMap& source) {
    std::filesystem::create_directory(checkpoint_);
    ASSERT_TRUE(WriteModelFiles(checkpoint_, config_, "").ok());
    dir_.Write("checkpoint-3/tokenizer.json", "{}");
    ASSERT_TRUE(WriteWeights(checkpoint_ + "/model.safetensors", model_,
                             WeightMap::ForNewModel(model_), Values(), WeightsFor::kCheckpoint)
                    .ok());
    CheckpointDetails details;
    details.job_json = job::JobSpecToJson(job_);
    details.weight_map_json = source.ToJson();
    CheckpointManifest manifest;
    manifest.step = 3;
    manifest.details_json = ToJson(details);
    ASSERT_TRUE(WriteManifest(checkpoint_, manifest).ok());
  }
  absl::Status Export(std::optional<DType> dtype = {}) {
    std::atomic<bool> cancelled{false};
    return ExportCheckpoint({checkpoint_, dir_.File("out"), dtype}, &cancelled);
  }
  // Nothing but the checkpoint, not even a part of a directory.
  void ExpectNothingWritten() { EXPECT_EQ(dir_.FileCount(), 1u); }

  TempDir dir_;
  const std::string checkpoint_ = dir_.File("checkpoint-3");
  std::string config_;
  job::JobSpec job_;
  model::ModelSpec model_;
  BlockValues data_;
};

TEST_F(CheckpointExportTest, IsWhatFinalIs) {
  const WeightMap source = WeightMap::ForNewModel(model_).WithType(model_, DType::kBF16);
  Write(source);
  ASSERT_TRUE(ExportModel(dir_.File("final"), model_, source, Values(), config_, checkpoint_).ok());
  const absl::Status status = Export();
  ASSERT_TRUE(status.ok()) << status;
  for (const char* const name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_EQ(dir_.Read(absl::StrCat("out/", name)), dir_.Read(absl::StrCat("final/", name)))
        << name;
    EXPECT_FALSE(dir_.Read(absl::StrCat("out/", name)).empty());
  }
}

TEST_F(CheckpointExportTest, RoundsToTheTypeThatIsAskedForAndSaysSoInTheConfiguration) {
  Write(WeightMap::ForNewModel(model_).WithType(model_, DType::kF16));
  for (const auto& [dtype, name] :
       {std::pair(DType::kF32, "float32"), {DType::kBF16, "bfloat16"}, {DType::kF16, "float16"}}) {
    const absl::Status status = Export(dtype);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(dir_.Read("out/config.json"), HasSubstr(absl::StrCat("\"dtype\": \"", name)));
    const auto reader = CheckpointReader::OpenDirectory(dir_.File("out"));
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (size_t b = 0; b < model_.blocks.size(); ++b) {
      for (const model::TensorSpec& tensor : model_.blocks[b].tensors) {
        ASSERT_NE(reader->Find(tensor.name), nullptr) << tensor.name;
        EXPECT_EQ(reader->Find(tensor.name)->dtype, dtype);
        std::vector<float> values(static_cast<size_t>(tensor.elements));
        ASSERT_TRUE(reader->ReadF32(tensor.name, absl::MakeSpan(values)).ok());
        for (size_t i = 0; i < values.size(); ++i) {
          const float exact = data_[b][static_cast<size_t>(tensor.weight.first_element()) + i];
          const float rounded = dtype == DType::kF32    ? exact
                                : dtype == DType::kBF16 ? FloatFromBf16(Bf16FromFloat(exact))
                                                        : FloatFromF16(F16FromFloat(exact));
          ASSERT_EQ(values[i], rounded) << tensor.name << " " << i;
        }
      }
    }
  }
}

TEST_F(CheckpointExportTest, NamesTheTensorThatIsOutOfRange) {
  const model::ParamBlock& block = model_.blocks.back();
  const model::TensorSpec& tensor = block.tensors.back();
  float& value = data_.back()[static_cast<size_t>(tensor.weight.first_element())];
  value = 65519;  // the largest number that rounds to 65504
  Write(WeightMap::ForNewModel(model_));
  EXPECT_TRUE(Export(DType::kF16).ok());
  std::filesystem::remove_all(dir_.File("out"));
  value = -65520;
  Write(WeightMap::ForNewModel(model_));
  const absl::Status status = Export(DType::kF16);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("'", tensor.name, "' holds -65520")));
  ExpectNothingWritten();
  EXPECT_TRUE(Export(DType::kBF16).ok());
}

TEST_F(CheckpointExportTest, ADamagedFileIsNamed) {
  Write(WeightMap::ForNewModel(model_));
  std::string bytes = dir_.Read("checkpoint-3/model.safetensors");
  bytes[bytes.size() / 2] ^= 1;
  dir_.Write("checkpoint-3/model.safetensors", bytes);
  const absl::Status status = Export();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint-3/model.safetensors"));
  ExpectNothingWritten();
}

TEST_F(CheckpointExportTest, LeavesNothingWhenItIsCancelled) {
  Write(WeightMap::ForNewModel(model_));
  std::atomic<bool> cancelled{true};
  EXPECT_TRUE(absl::IsAborted(ExportCheckpoint({checkpoint_, dir_.File("out"), {}}, &cancelled)));
  ExpectNothingWritten();
}

}  // namespace
}  // namespace harmony::io
