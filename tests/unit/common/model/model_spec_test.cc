#include "common/model/model_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace harmony {
namespace {

ModelSpec Preset(absl::string_view name) {
  return BuildModelSpec(*ParseModelConfig(*PresetConfigJson(name), name));
}

TEST(ModelSpecTest, Gpt2Has124MillionParameters) {
  const ModelSpec model = Preset("gpt2-124m");
  EXPECT_EQ(model.parameter_count(), 124'439'808);
  EXPECT_EQ(model.tied_parameter_count(), 50257 * 768);
  EXPECT_EQ(model.num_layers(), 14);
  EXPECT_EQ(Preset("gpt2-xl").parameter_count(), 1'557'611'200);
  EXPECT_EQ(Preset("gpt2-medium").parameter_count(), Preset("gpt2-355m").parameter_count());
}

TEST(ModelSpecTest, TiedGpt2UsesItsTokenTableTwice) {
  const ModelSpec model = Preset("gpt2-mini");
  const LayerSpec& embedding = model.layers.front();
  ASSERT_EQ(embedding.uses.size(), 2u);
  EXPECT_EQ(model.blocks[model.uses[embedding.uses[0]].block].name, "embed.tokens");
  EXPECT_EQ(model.blocks[model.uses[embedding.uses[1]].block].name, "embed.positions");
  EXPECT_FALSE(model.uses[embedding.uses[0]].needed_in_backward);
  const LayerSpec& head = model.layers.back();
  ASSERT_EQ(head.uses.size(), 2u);
  const ParamUse& tied = model.uses[head.uses[1]];
  EXPECT_EQ(tied.block, model.uses[embedding.uses[0]].block);
  EXPECT_TRUE(tied.needed_in_backward);
  EXPECT_EQ(model.blocks[tied.block].uses, (std::vector<int>{embedding.uses[0], head.uses[1]}));
  EXPECT_EQ(FindTensor(model.blocks[model.uses[head.uses[0]].block], "lm_head.weight"), nullptr);
}

TEST(ModelSpecTest, UntiedHeadOwnsItsProjection) {
  const ModelSpec model = Preset("llama-tiny");
  EXPECT_EQ(model.layers.front().uses.size(), 1u);
  const LayerSpec& head = model.layers.back();
  ASSERT_EQ(head.uses.size(), 1u);
  const ParamBlock& block = model.blocks[model.uses[head.uses[0]].block];
  ASSERT_NE(FindTensor(block, "lm_head.weight"), nullptr);
  EXPECT_EQ(block.tensors[0].name, "model.norm.weight");
  EXPECT_EQ(model.tied_parameter_count(), 0);
}

TEST(ModelSpecTest, NamesShapesAndInitOfBlocks) {
  const ModelSpec gpt2 = Preset("gpt2-124m");
  const ParamBlock& block = gpt2.blocks[gpt2.uses[gpt2.layers[1].uses[0]].block];
  const TensorSpec* c_attn = FindTensor(block, "attn.c_attn.weight");
  ASSERT_NE(c_attn, nullptr);
  EXPECT_EQ(c_attn->name, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(c_attn->shape, (std::vector<int64_t>{768, 2304}));
  EXPECT_TRUE(c_attn->weight_decay);
  EXPECT_NEAR(FindTensor(block, "mlp.c_proj.weight")->init_std, 0.02 / std::sqrt(24.0), 1e-12);
  EXPECT_EQ(FindTensor(block, "ln_1.weight")->init, InitKind::kOnes);
  EXPECT_FALSE(FindTensor(block, "ln_1.weight")->weight_decay);

  const ModelSpec qwen3 = Preset("qwen3-tiny");
  const ParamBlock& q = qwen3.blocks[qwen3.uses[qwen3.layers[6].uses[0]].block];
  EXPECT_EQ(FindTensor(q, "self_attn.q_proj.weight")->shape, (std::vector<int64_t>{256, 192}));
  EXPECT_EQ(FindTensor(q, "self_attn.k_proj.weight")->name,
            "model.layers.5.self_attn.k_proj.weight");
  EXPECT_EQ(FindTensor(q, "self_attn.q_norm.weight")->shape, (std::vector<int64_t>{64}));
}

TEST(ModelSpecTest, TensorsAreAlignedUniqueAndDoNotOverlap) {
  for (const std::string& preset : PresetNames()) {
    const ModelSpec model = Preset(preset);
    std::set<std::string> names;
    for (const ParamBlock& block : model.blocks) {
      int64_t end = 0;
      for (const TensorSpec& tensor : block.tensors) {
        EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
        EXPECT_EQ(tensor.offset % 16, 0);
        EXPECT_GE(tensor.offset, end);
        end = tensor.offset + tensor.elements;
      }
      EXPECT_GE(block.elements, end);
      EXPECT_EQ(block.elements % 16, 0);
    }
  }
}

TEST(ModelCostTest, BoundariesAndChunks) {
  const ModelSpec model = Preset("gpt2-124m");
  EXPECT_EQ(BoundaryBytes(model, 0, 2, 256), Bytes(2 * 256 * 4));
  EXPECT_EQ(BoundaryBytes(model, 5, 2, 256), Bytes(2 * 256 * 768 * 4));
  EXPECT_EQ(HeadChunkRows(model.config), 256);
  EXPECT_EQ(HeadChunkRows(Preset("gpt2-mini").config), 1024);
}

TEST(ModelCostTest, FlopsAreTwoPerWeightAndToken) {
  const ModelSpec model = Preset("gpt2-124m");
  double flops = 0;
  for (const LayerSpec& layer : model.layers) flops += ForwardFlops(model, layer.index, 1, 256);
  // 12 blocks of 12 C^2 weights and the head, with a few percent for attention.
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  EXPECT_NEAR(flops / (2 * weights * 256), 1.0, 0.05);
}

TEST(ModelCostTest, WorkspaceGrowsWithTheRangeAndNeverOverflows) {
  const ModelSpec model = Preset("gpt2-124m");
  EXPECT_LT(ForwardWorkspaceBytes(model, {1, 1}, 2, 256),
            BackwardWorkspaceBytes(model, {1, 4}, 2, 256));
  EXPECT_LT(BackwardWorkspaceBytes(model, {1, 1}, 2, 256),
            BackwardWorkspaceBytes(model, {1, 2}, 2, 256));
  const Bytes absurd = BackwardWorkspaceBytes(model, {0, 13}, int64_t{1} << 40, int64_t{1} << 40);
  EXPECT_GT(absurd, GiB(1 << 20));
}

TEST(ModelCostTest, KeptActivationsAreWhatTheBlocksSaveAndWhatLiesBetweenThem) {
  const ModelSpec model = Preset("gpt2-124m");
  const Bytes block = KeptBlockBytes(model.config, 2, 256);
  EXPECT_EQ(block, SavedActivationBytes(model, 1, 2, 256));  // no rounding at this size
  EXPECT_EQ(KeptActivationBytes(model, {1, 1}, 2, 256), block);
  EXPECT_EQ(KeptActivationBytes(model, {0, 3}, 2, 256),
            block * 3 + BoundaryBytes(model, 1, 2, 256) * 2);
  EXPECT_EQ(KeptActivationBytes(model, {0, 0}, 2, 256), Bytes(0));
  EXPECT_LT(KeptBackwardWorkspaceBytes(model, {1, 4}, 2, 256),
            BackwardWorkspaceBytes(model, {1, 1}, 2, 256));
  EXPECT_GT(KeptActivationBytes(model, {0, 12}, int64_t{1} << 40, int64_t{1} << 40), GiB(1 << 20));
}

TEST(ModelCostTest, FootprintCountsStateAndLogits) {
  const ModelSpec model = Preset("gpt2-124m");
  const Footprint footprint = ComputeFootprint(model, 32, 256, 2);
  EXPECT_EQ(footprint.weights, footprint.gradients);
  EXPECT_EQ(footprint.optimizer_state, footprint.weights * 2);
  EXPECT_GT(footprint.activations, Bytes(int64_t{32} * 256 * 50257 * 4));
  EXPECT_GT(footprint.total(), GiB(4));
}

}  // namespace
}  // namespace harmony
