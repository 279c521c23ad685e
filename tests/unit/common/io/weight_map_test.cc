#include "common/io/weight_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/strip.h"
#include "common/io/safetensors_writer.h"
#include "common/model/families/causal_lm.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::io {
namespace {

using ::testing::HasSubstr;

// A preset with two blocks only, to keep the files small.
model::ModelSpec Preset(absl::string_view name) {
  model::ModelConfig config = *model::ParseModelConfig(*model::PresetConfigJson(name), name);
  config.num_layers = 2;
  return model::BuildModelSpec(config, 64);
}

// A checkpoint of the model, changed by `edit`.
absl::StatusOr<CheckpointReader> Write(
    const TempDir& dir, const model::ModelSpec& model,
    const std::function<void(std::vector<TensorToWrite>&)>& edit) {
  std::vector<TensorToWrite> tensors;
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      tensors.push_back({tensor.name, DType::kBF16, tensor.shape});
    }
  }
  edit(tensors);
  auto writer = SafetensorsWriter::Create(dir.File("model.safetensors"), tensors);
  for (const TensorToWrite& tensor : tensors) {
    int64_t elements = 1;
    for (int64_t n : tensor.shape) elements *= n;
    EXPECT_TRUE(writer->WriteTensor(tensor.name, std::vector<float>(elements, 0.5f)).ok());
  }
  EXPECT_TRUE(writer->Finish().ok());
  return CheckpointReader::OpenDirectory(dir.path());
}

void ExpectMismatch(const std::function<void(std::vector<TensorToWrite>&)>& edit,
                    absl::string_view part) {
  const TempDir dir;
  const model::ModelSpec model = Preset("gpt2-mini");
  const auto reader = Write(dir, model, edit);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto map = WeightMap::Match(model, *reader);
  EXPECT_EQ(map.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(map.status().message()), HasSubstr(std::string(part)));
  EXPECT_THAT(std::string(map.status().message()), HasSubstr("model.safetensors"));
}

TEST(WeightMapTest, NamesWithAndWithoutPrefix) {
  for (const char* preset : {"gpt2-mini", "llama-tiny"}) {
    const model::ModelSpec model = Preset(preset);
    for (const bool bare : {false, true}) {
      const TempDir dir;
      const auto reader = Write(dir, model, [&](std::vector<TensorToWrite>& tensors) {
        for (TensorToWrite& tensor : tensors) {
          if (!bare) continue;
          tensor.name = std::string(
              absl::StripPrefix(absl::StripPrefix(tensor.name, "transformer."), "model."));
        }
      });
      ASSERT_TRUE(reader.ok());
      const auto map = WeightMap::Match(model, *reader);
      ASSERT_TRUE(map.ok()) << map.status();
      const model::TensorSpec& tensor = model.blocks[2].tensors[0];
      EXPECT_EQ(map->of(tensor).name.size() < tensor.name.size(), bare);
      EXPECT_EQ(map->of(tensor).dtype, DType::kBF16);
      const auto again = WeightMap::FromJson(map->ToJson(), model, "checkpoint");
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(*again, *map);
    }
  }
}

TEST(WeightMapTest, TiedHeadAndOldBuffersAreIgnored) {
  const TempDir dir;
  const model::ModelSpec model = Preset("gpt2-mini");
  const auto reader = Write(dir, model, [](std::vector<TensorToWrite>& tensors) {
    tensors.push_back({"lm_head.weight", DType::kF32, {256, 192}});
    tensors.push_back({"transformer.h.0.attn.bias", DType::kF32, {1, 1, 4, 4}});
    tensors.push_back({"h.1.attn.masked_bias", DType::kF32, {}});
  });
  EXPECT_TRUE(WeightMap::Match(model, *reader).ok()) << WeightMap::Match(model, *reader).status();
}

TEST(WeightMapTest, MismatchesAreNamed) {
  ExpectMismatch([](auto& tensors) { tensors.erase(tensors.begin() + 3); },
                 "'transformer.h.0.ln_1.bias'");
  ExpectMismatch([](auto& tensors) { tensors[0].shape = {255, 192}; }, "[255, 192]");
  ExpectMismatch(
      [](auto& tensors) {
        tensors.push_back({"h.99.oops", DType::kF32, {2}});
      },
      "'h.99.oops'");
  ExpectMismatch(
      [](auto& tensors) {
        tensors.push_back({"wte.weight", DType::kF32, {256, 192}});
      },
      "holds both");
  ExpectMismatch(
      [](auto& tensors) {
        tensors.push_back({"lm_head.weight", DType::kF32, {257, 192}});
      },
      "the tied 'lm_head.weight'");
}

TEST(WeightMapTest, StoredMapsAreChecked) {
  const model::ModelSpec model = Preset("gpt2-mini");
  for (const char* text : {"", "{}", "[]", "3"}) {
    EXPECT_FALSE(WeightMap::FromJson(text, model, "here").ok()) << text;
  }
}

}  // namespace
}  // namespace harmony::io
