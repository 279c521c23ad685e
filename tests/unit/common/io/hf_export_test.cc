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
  dir_.Write("first/preprocessor_config.json", "{  }");
  dir_.Write("first/notes.txt", "not copied");
  dir_.Write("first/tokenizer_notes.txt", "nor this");

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
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json",
                           "generation_config.json", "preprocessor_config.json"}) {
    EXPECT_EQ(dir_.Read(absl::StrCat("first/", name)), dir_.Read(absl::StrCat("second/", name)))
        << name;
    EXPECT_FALSE(dir_.Read(absl::StrCat("second/", name)).empty());
  }
  for (const char* name : {"second/notes.txt", "second/tokenizer_notes.txt"}) {
    EXPECT_FALSE(std::filesystem::exists(dir_.File(name)));
  }
  EXPECT_EQ(dir_.FileCount(), 2u);
}

TEST_P(ExportTest, NumbersThatTheTypeCannotHoldAreNotWritten) {
  data_[0][model_.blocks[0].tensors[0].weight.first_element()] = 1e6F;
  const WeightMap wide = WeightMap::ForNewModel(model_);
  const absl::Status status =
      ExportModel(dir_.File("half"), model_, wide.WithType(model_, DType::kF16), Values(),
                  source_.config_json, "");
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  EXPECT_FALSE(std::filesystem::exists(dir_.File("half")));
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

// A run goes on with a model that computes what it did, however its file is written.
TEST(OpenModelSourceTest, ContentIsWhatItComputes) {
  TempDir dir;
  const auto content = [&dir](const std::string& config) {
    dir.Write("config.json", config);
    const auto source = OpenModelSource(dir.path());
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? source->content : "";
  };
  const std::string first = content(
      R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 9, "n_positions": 16})");
  EXPECT_EQ(first.size(), 16U);
  EXPECT_EQ(content(R"({"vocab_size": 9, "use_cache": false, "model_type": "gpt2", "n_layer": 1,
                        "n_embd": 8, "n_head": 2, "resid_pdrop": 0.2, "n_positions": 16})"),
            first);
  for (const char* other : {R"("layer_norm_epsilon": 0.1, "n_head": 2)", R"("n_head": 1)",
                            R"("n_head": 2, "activation_function": "relu")"}) {
    EXPECT_NE(
        content(absl::StrCat(
            R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "vocab_size": 9, "n_positions": 16, )",
            other, "}")),
        first)
        << other;
  }
}

TEST(OpenModelSourceTest, WhichTokenIsPaddingIsContent) {
  TempDir dir;
  const auto content = [&dir](const std::string& more) {
    dir.Write("config.json",
              absl::StrCat(R"({"model_type": "llama", "vocab_size": 9, "hidden_size": 8,
                               "num_hidden_layers": 1, "num_attention_heads": 2,
                               "intermediate_size": 8)",
                           more, "}"));
    const auto source = OpenModelSource(dir.path());
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? source->content : "";
  };
  EXPECT_NE(content(R"(, "pad_token_id": 3)"), content(""));
  EXPECT_EQ(content(R"(, "pad_token_id": 3)"), content(R"(, "pad_token_id": -6)"));
}

TEST(OpenModelSourceTest, NeitherPresetNorDirectory) {
  const auto source = OpenModelSource("gpt2-124");
  EXPECT_EQ(source.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(source.status().message()).find("gpt2-124m"), std::string::npos);
  const TempDir dir;
  EXPECT_EQ(OpenModelSource(dir.path()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace harmony::io
