#include "common/io/hf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "common/io/hf_directory.h"
#include "common/model/families/causal_lm.h"
#include "tests/unit/common/io/model_values.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::io {
namespace {

class ExportTest : public ::testing::TestWithParam<const char*> {
 protected:
  ExportTest() {
    // A preset with two blocks only, to keep the files small.
    source_.config_json =
        absl::StrReplaceAll(*model::PresetConfigJson(GetParam()),
                            {{"\"n_layer\": 12", "\"n_layer\": 2"},
                             {"\"num_hidden_layers\": 6", "\"num_hidden_layers\": 2"}});
    source_.architecture = *model::ParseArchitecture(source_.config_json, GetParam());
    model_ = model::BuildModelSpec(source_.architecture, 64);
    data_ = RandomValues(model_);
  }
  TensorValues Values() const { return TensorsOf(model_, data_); }
  TempDir dir_;
  ModelSource source_;
  model::ModelSpec model_;
  BlockValues data_;
};

TEST_P(ExportTest, LoadingAndExportingAgainGivesTheSameFiles) {
  const std::string first = dir_.File("first"), second = dir_.File("second");
  ASSERT_TRUE(
      ExportModel(first, model_, WeightMap::ForNewModel(model_), Values(), source_.config_json, "")
          .ok());
  dir_.Write("first/tokenizer.json", "{}");
  dir_.Write("first/generation_config.json", "{ }");
  dir_.Write("first/notes.txt", "not copied");

  const auto again = OpenModelSource(first);
  ASSERT_TRUE(again.ok()) << again.status();
  const auto reader = CheckpointReader::OpenDirectory(first);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto map = WeightMap::Match(model_, *reader);
  ASSERT_TRUE(map.ok()) << map.status();
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    for (const model::TensorSpec& tensor : model_.blocks[b].tensors) {
      std::vector<float> values(tensor.elements);
      ASSERT_TRUE(reader->ReadF32(map->of(tensor).name, absl::MakeSpan(values)).ok());
      EXPECT_TRUE(std::equal(values.begin(), values.end(),
                             data_[b].begin() + tensor.weight.first_element()));
    }
  }
  ASSERT_TRUE(ExportModel(second, model_, *map, Values(), again->config_json, first).ok());
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}) {
    EXPECT_EQ(dir_.Read(absl::StrCat("first/", name)), dir_.Read(absl::StrCat("second/", name)))
        << name;
    EXPECT_FALSE(dir_.Read(absl::StrCat("second/", name)).empty());
  }
  EXPECT_FALSE(std::filesystem::exists(dir_.File("second/notes.txt")));
  EXPECT_EQ(dir_.FileCount(), 2u);
}

// Transformers loads weights as the config.json says, and would convert them back.
TEST(ModelFilesTest, TheConfigOfAnExportedModelNamesTheTypeThatIsAskedFor) {
  TempDir dir;
  std::filesystem::create_directory(dir.File("source"));
  dir.Write("source/config.json", R"({"torch_dtype": "float16", "vocab_size": 3})");
  for (const auto& [type, text] : std::vector<std::pair<std::optional<DType>, std::string>>{
           {std::nullopt, "float16"}, {DType::kF32, "float32"}, {DType::kBF16, "bfloat16"}}) {
    const std::string out = dir.File(absl::StrCat("out-", text));
    std::filesystem::create_directory(out);
    ASSERT_TRUE(WriteModelFiles(out, R"({"harmony_model": 1})", dir.File("source"), type).ok());
    EXPECT_THAT(dir.Read(absl::StrCat("out-", text, "/config.json")),
                ::testing::HasSubstr(absl::StrCat("\"torch_dtype\": \"", text, "\"")));
  }
}

// A new model's weights are fp32, whatever the file says that they were made from.
TEST_P(ExportTest, TheConfigNamesTheTypeThatTheWeightsHave) {
  const std::string config =
      absl::StrCat("{\"torch_dtype\": \"float16\", ", source_.config_json.substr(1));
  const WeightMap wide = WeightMap::ForNewModel(model_);
  for (const auto& [map, text] : std::vector<std::pair<WeightMap, std::string>>{
           {wide, "float32"}, {wide.WithType(model_, DType::kBF16), "bfloat16"}}) {
    ASSERT_TRUE(ExportModel(dir_.File(text), model_, map, Values(), config, "").ok());
    EXPECT_THAT(dir_.Read(absl::StrCat(text, "/config.json")),
                ::testing::HasSubstr(absl::StrCat("\"torch_dtype\": \"", text, "\"")));
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, ExportTest,
                         ::testing::Values("gpt2-mini", "llama-tiny", "qwen3-tiny"));

TEST(OpenModelSourceTest, NeitherPresetNorDirectory) {
  const auto source = OpenModelSource("gpt2-124");
  EXPECT_EQ(source.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(source.status().message()).find("gpt2-124m"), std::string::npos);
  const TempDir dir;
  EXPECT_EQ(OpenModelSource(dir.path()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace harmony::io
