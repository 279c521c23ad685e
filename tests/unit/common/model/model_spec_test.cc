#include "common/model/model_spec.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_sizes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace harmony::model {
namespace {

ModelSpec Preset(absl::string_view name) {
  return BuildModelSpec(*ParseModelConfig(*PresetConfigJson(name), name), 256);
}
ModelConfig ConfigOf(absl::string_view name) {
  return *ParseModelConfig(*PresetConfigJson(name), name);
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
  ASSERT_EQ(embedding.references.size(), 2u);
  EXPECT_EQ(model.blocks[model.references[embedding.references[0]].block].name, "embed.tokens");
  EXPECT_EQ(model.blocks[model.references[embedding.references[1]].block].name, "embed.positions");
  EXPECT_FALSE(model.references[embedding.references[0]].needed_in_backward);
  const LayerSpec& head = model.layers.back();
  ASSERT_EQ(head.references.size(), 2u);
  const ParameterReference& tied = model.references[head.references[1]];
  EXPECT_EQ(tied.block, model.references[embedding.references[0]].block);
  EXPECT_TRUE(tied.needed_in_backward);
  EXPECT_EQ(model.blocks[tied.block].references,
            (std::vector<int>{embedding.references[0], head.references[1]}));
  EXPECT_EQ(FindTensor(model.blocks[model.references[head.references[0]].block], "lm_head.weight"),
            nullptr);
}

TEST(ModelSpecTest, UntiedHeadOwnsItsProjection) {
  const ModelSpec model = Preset("llama-tiny");
  EXPECT_EQ(model.layers.front().references.size(), 1u);
  const LayerSpec& head = model.layers.back();
  ASSERT_EQ(head.references.size(), 1u);
  const ParamBlock& block = model.blocks[model.references[head.references[0]].block];
  ASSERT_NE(FindTensor(block, "lm_head.weight"), nullptr);
  EXPECT_EQ(block.tensors[0].name, "model.norm.weight");
  EXPECT_EQ(model.tied_parameter_count(), 0);
}

TEST(ModelSpecTest, NamesShapesAndInitOfBlocks) {
  const ModelSpec gpt2 = Preset("gpt2-124m");
  const ParamBlock& block = gpt2.blocks[gpt2.references[gpt2.layers[1].references[0]].block];
  const TensorSpec* c_attn = FindTensor(block, "attn.c_attn.weight");
  ASSERT_NE(c_attn, nullptr);
  EXPECT_EQ(c_attn->name, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(c_attn->shape, (std::vector<int64_t>{768, 2304}));
  EXPECT_TRUE(c_attn->weight_decay);
  EXPECT_NEAR(FindTensor(block, "mlp.c_proj.weight")->init_std, 0.02 / std::sqrt(24.0), 1e-12);
  EXPECT_EQ(FindTensor(block, "ln_1.weight")->init, InitKind::kOnes);
  EXPECT_FALSE(FindTensor(block, "ln_1.weight")->weight_decay);

  const ModelSpec qwen3 = Preset("qwen3-tiny");
  const ParamBlock& q = qwen3.blocks[qwen3.references[qwen3.layers[6].references[0]].block];
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
      Bytes end;
      int64_t numbers = 0;
      for (const TensorSpec& tensor : block.tensors) {
        EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
        EXPECT_EQ(tensor.weight.offset.count() % kSlotAlignment, 0);
        EXPECT_GE(tensor.weight.offset, end);
        EXPECT_GE(tensor.init_position, numbers);
        end = tensor.weight.offset + Bytes(4 * tensor.elements);
        numbers = tensor.init_position + tensor.elements;
      }
      EXPECT_GE(block.weight_bytes, end);
      EXPECT_EQ(block.weight_bytes.count() % kSlotAlignment, 0);
      EXPECT_EQ(block.elements() * 4, block.weight_bytes.count());
    }
  }
}

TEST(ModelSpecTest, EachFormOfABlockHasItsOwnTypes) {
  ParamBlock block;
  const auto add = [&](std::vector<int64_t> shape, DType weight, DType gradient) {
    TensorSpec tensor;
    tensor.shape = std::move(shape);
    tensor.weight.dtype = weight;
    tensor.gradient.dtype = gradient;
    AddTensor(block, std::move(tensor));
  };
  add({3, 100}, DType::kBF16, DType::kF32);
  add({5}, DType::kF32, DType::kBF16);
  EXPECT_EQ(block.tensors[1].weight.offset, Bytes(768));      // 600, in whole slots
  EXPECT_EQ(block.tensors[1].gradient.offset, Bytes(1536));   // as many numbers of twice the size
  EXPECT_EQ(block.tensors[1].gradient.first_element(), 768);  // of two bytes each
  EXPECT_EQ(block.tensors[1].moment.offset, Bytes(1536));
  EXPECT_EQ(block.tensors[1].init_position, 304);  // whatever the slots and types
  EXPECT_EQ(block.weight_bytes, Bytes(1024));
  EXPECT_EQ(block.gradient_bytes, Bytes(1792));
  EXPECT_EQ(block.master_bytes(), block.moment_bytes);
  EXPECT_TRUE(block.tensors[0].has_master());
  EXPECT_EQ(block.tensors[0].value_dtype(), DType::kF32);
  EXPECT_FALSE(block.tensors[1].has_master());
}

// Each begins at or before its sum, after as many numbers, gaps included.
TEST(ModelSpecTest, GradientsAreStoredNarrowerThanTheyAreAddedUp) {
  ModelSpec model;
  ParamBlock block;
  const auto add = [&](int64_t elements, DType weight, TensorRole role) {
    TensorSpec tensor;
    tensor.shape = {elements};
    tensor.weight.dtype = weight;
    if (role == TensorRole::kStatistic) tensor.gradient.dtype = tensor.moment.dtype = weight;
    tensor.role = role;
    AddTensor(block, std::move(tensor));
  };
  add(64, DType::kF32, TensorRole::kTrained);  // so that others begin at an odd slot
  add(300, DType::kBF16, TensorRole::kTrained);
  add(40, DType::kBF16, TensorRole::kTrained);
  add(5, DType::kF32, TensorRole::kTrained);
  add(1, DType::kI64, TensorRole::kStatistic);
  add(7, DType::kBF16, TensorRole::kTrained);
  add(9, DType::kBF16, TensorRole::kFixed);
  AddBlock(model, std::move(block));
  AddBlock(model, ParamBlock());
  StoreGradientsAs(DType::kBF16, model);
  const std::vector<TensorSpec>& tensors = model.blocks[0].tensors;
  const std::vector<int64_t> sums = {0, 256, 1792, 2304, 2560, 2816, 3328};
  const std::vector<int64_t> stored = {0, 256, 1024, 1280, 1536, 1792, 2048};
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].accumulator.offset, Bytes(sums[i])) << i;
    EXPECT_EQ(tensors[i].moment.offset, tensors[i].accumulator.offset) << i;
    EXPECT_EQ(tensors[i].gradient.offset, Bytes(stored[i])) << i;
  }
  // From the start of a tensor to that of the next one, in each form.
  for (const size_t i : {1, 2, 5}) {
    const auto room = [&](StoredAs TensorSpec::*form) {
      return (tensors[i + 1].*form).offset - (tensors[i].*form).offset;
    };
    EXPECT_EQ(room(&TensorSpec::accumulator), room(&TensorSpec::weight) * 2) << i;
    EXPECT_EQ(room(&TensorSpec::accumulator), room(&TensorSpec::gradient) * 2) << i;
  }
  EXPECT_EQ(tensors[1].gradient.dtype, DType::kBF16);
  EXPECT_EQ(tensors[3].gradient.dtype, DType::kF32);
  EXPECT_EQ(tensors[4].gradient.dtype, DType::kI64);
  EXPECT_EQ(tensors[1].accumulator.dtype, DType::kF32);
  EXPECT_EQ(model.blocks[0].accumulator_bytes, Bytes(3328));
  EXPECT_EQ(model.blocks[0].gradient_bytes, Bytes(2048));
  EXPECT_EQ(model.blocks[1].gradient_bytes, Bytes(kSlotAlignment)) << "an object has a size";
  StoreGradientsAs(DType::kF32, model);
  EXPECT_EQ(tensors[5].gradient.offset, tensors[5].accumulator.offset);
  EXPECT_EQ(model.blocks[0].gradient_bytes, model.blocks[0].accumulator_bytes);
}

TEST(ModelSpecTest, WhatIsNotTrainedHasNoMaster) {
  ParamBlock block;
  for (const TensorRole role : {TensorRole::kStatistic, TensorRole::kFixed}) {
    TensorSpec tensor;
    tensor.shape = {5};
    tensor.weight.dtype = tensor.gradient.dtype = DType::kBF16;
    tensor.role = role;
    AddTensor(block, std::move(tensor));
    EXPECT_EQ(block.tensors.back().value_dtype(), DType::kBF16);
  }
  EXPECT_EQ(block.master_bytes(), Bytes(0));
}

TEST(ModelSpecTest, MixedPrecisionHalvesWhatTravelsAndKeepsMasters) {
  const ModelConfig config = *ParseModelConfig(*PresetConfigJson("gpt2-124m"), "gpt2-124m");
  const ModelSpec wide = BuildModelSpec(config, 256);
  const ModelSpec narrow = BuildModelSpec(config, 256, DType::kBF16);
  EXPECT_EQ(BoundaryBytes(narrow, 1, 2) * 2, BoundaryBytes(wide, 1, 2));
  for (size_t b = 0; b < wide.blocks.size(); ++b) {
    const ParamBlock &one = wide.blocks[b], &other = narrow.blocks[b];
    // But for the gaps between tensors.
    EXPECT_NEAR(other.weight_bytes.count(), one.weight_bytes.count() / 2, 4096);
    EXPECT_NEAR(other.gradient_bytes.count(), one.gradient_bytes.count(), 4096);
    EXPECT_EQ(other.master_bytes(), other.moment_bytes);
    for (size_t t = 0; t < one.tensors.size(); ++t) {
      EXPECT_EQ(other.tensors[t].init_position, one.tensors[t].init_position);
      EXPECT_EQ(other.tensors[t].weight.first_element(), other.tensors[t].moment.first_element());
    }
  }
}

TEST(ModelCostTest, BoundariesAndChunks) {
  const ModelSpec model = Preset("gpt2-124m");
  EXPECT_EQ(BoundaryBytes(model, 0, 2), Bytes(0));
  EXPECT_EQ(BoundaryBytes(model, 5, 2), Bytes(2 * 256 * 768 * 4));
  EXPECT_EQ(BoundaryBytes(model, 14, 2), Bytes(0));
  EXPECT_EQ(LayerInputBytes(model, 0, 2), Bytes(2 * 256 * 4));
  EXPECT_EQ(LayerInputBytes(model, 13, 2), BoundaryBytes(model, 13, 2));
  EXPECT_EQ(HeadChunkRows(ConfigOf("gpt2-124m")), 256);
  EXPECT_EQ(HeadChunkRows(ConfigOf("gpt2-mini")), 1024);
}

TEST(ModelCostTest, SizesAreTheLargestPhaseOrWhatWasMeasured) {
  BytesBySamples size;
  EXPECT_EQ(size.At(5), Bytes(0));
  // 100 a sample, and 50 more of each up to 120; or 1000, and 10 a thread.
  size.phases = {{Bytes(100), Bytes(), Bytes(), Bytes(50), Bytes(120)},
                 {Bytes(), Bytes(1000), Bytes(10), Bytes(), Bytes()}};
  EXPECT_EQ(size.At(2), Bytes(1010));
  EXPECT_EQ(size.At(2, /*threads=*/3), Bytes(1030));
  EXPECT_EQ(size.At(9), Bytes(1020));
  EXPECT_EQ(size.At(int64_t{1} << 62), kMostBytes);
  BytesBySamples table;
  table.table = {{1, Bytes(7)}, {4, Bytes(9)}};
  EXPECT_EQ(table.At(4), Bytes(9));
  EXPECT_EQ(table.At(2), kMostBytes);
  EXPECT_EQ(table.At(5), kMostBytes);
}

// Three layers of different costs; boundary 1 has a tensor of bytes beside its floats, boundary 2
// two tensors of different types; a mask skips ahead to the last two layers.
ModelSpec MadeUpChain() {
  ModelSpec model;
  model.boundaries = {{},
                      {{"x", DType::kBF16, {10, 10}}, {"kinds", DType::kI64, {3}}},
                      {{"x", DType::kF32, {64}}, {"skipped", DType::kBF16, {10, 10}}},
                      {}};
  model.inputs = {{{"image", DType::kU8, {3, 7, 7}}, 0, {0}},
                  {{"mask", DType::kBool, {5}}, 2, {1, 2}}};
  for (int layer = 0; layer < 3; ++layer) {
    model.layers.push_back({layer, layer, {}});
    LayerCost& cost = model.costs.emplace_back();
    LayerWorkspace& bound = cost.bound;
    const int64_t n = 1 + layer;
    bound.forward = BytesBySamples::Of(Bytes(1000 * n));
    bound.kept = BytesBySamples::Of(Bytes(10'000 * n));
    bound.backward = BytesBySamples::Of(Bytes(10'000 * n), Bytes(100'000 / n));
    bound.keeping_forward = BytesBySamples::Of(Bytes(1), Bytes(n));
    bound.kept_backward = BytesBySamples::Of(Bytes(2), Bytes(n));
    cost.kept_tensors = {BytesBySamples::Of(Bytes(300)), BytesBySamples::Of(Bytes(1))};
  }
  return model;
}

TEST(ModelCostTest, TensorsOfABoundaryFollowEachOther) {
  const ModelSpec model = MadeUpChain();
  EXPECT_EQ(BoundaryBytes(model, 1, 1), Bytes(256 + 24));
  EXPECT_EQ(BoundaryBytes(model, 1, 2), Bytes(512 + 48));  // 400 bytes take two slots
  EXPECT_EQ(BoundaryGradientBytes(model, 1, 2), BoundaryBytes(model, 1, 2));
  EXPECT_EQ(BoundaryGradientBytes(model, 2, 1), Bytes(256 + 200));
  EXPECT_FALSE(BoundariesSplit(model, 1));
  EXPECT_TRUE(BoundariesSplit(Preset("gpt2-124m"), 1));
  EXPECT_EQ(InputsOf(model, {0, 0}), (std::vector<int>{0}));
  EXPECT_EQ(InputsOf(model, {1, 1}), (std::vector<int>{1}));
  EXPECT_EQ(InputsOf(model, {0, 2}), (std::vector<int>{0, 1}));
  const BatchLayout batch = LayOutBatch(model, 4);
  EXPECT_EQ(batch.offsets, (std::vector<Bytes>{Bytes(0), Bytes(768)}));  // 588 bytes of images
  EXPECT_EQ(batch.size, Bytes(1024));
}

TEST(ModelCostTest, WorkspaceOfARangeFollowsFromItsLayers) {
  const ModelSpec model = MadeUpChain();
  const Bytes b1 = BoundaryBytes(model, 1, 2), b2 = BoundaryBytes(model, 2, 2);
  const auto bound = [&](WorkspaceOf task, LayerRange range) {
    return WorkspaceBound(model, task, range, 2);
  };
  EXPECT_EQ(bound(WorkspaceOf::kForward, {1, 1}), Bytes(4000));
  // What leaves layer 0 is the group's stash, and bound.
  EXPECT_EQ(bound(WorkspaceOf::kForward, {0, 1}), Bytes(4000));
  // Inner inputs, all that is kept, the largest temporary, a gradient on its way.
  EXPECT_EQ(bound(WorkspaceOf::kBackward, {1, 1}), Bytes(40'000 + 50'000));
  EXPECT_EQ(bound(WorkspaceOf::kBackward, {0, 1}),
            Bytes(20'000 + 40'000 + 100'000) + BoundaryGradientBytes(model, 1, 2));
  EXPECT_EQ(bound(WorkspaceOf::kBackward, {1, 2}),
            Bytes(40'000 + 60'000 + 50'000) + b2 + BoundaryGradientBytes(model, 2, 2));
  // The fused task finds layer 0's output nowhere else.
  EXPECT_EQ(bound(WorkspaceOf::kBackward, {0, 2}), Bytes(20'000 + 40'000 + 60'000 + 100'000) + b1 +
                                                       b2 + BoundaryGradientBytes(model, 2, 2));
  EXPECT_EQ(bound(WorkspaceOf::kKeepingForward, {0, 1}), Bytes(4));
  EXPECT_EQ(bound(WorkspaceOf::kKeptBackward, {0, 1}),
            Bytes(6) + BoundaryGradientBytes(model, 1, 2));
  // Two tensors a layer, of 600 and 2 bytes; layer 0 keeps none.
  EXPECT_EQ(KeptActivationBytes(model, {0, 1}, 2), Bytes(768 + 256));
  EXPECT_EQ(KeptActivationBytes(model, {1, 2}, 2), Bytes(2 * (768 + 256)) + b2.AlignUp(256));
}

TEST(ModelCostTest, OnGpusABackwardHoldsTheSumsOfFusedAttentionToo) {
  for (const char* name : {"gpt2-mini", "llama-tiny"}) {
    const ModelConfig config = ConfigOf(name);
    const int64_t tokens = 200, rows = 256;  // a multiple of 128
    // Grouped queries: gradients by keys and values, too.
    const int64_t parts = config.num_kv_heads > 0 && config.num_kv_heads < config.num_heads ? 2 : 1;
    ModelSpec model = BuildModelSpec(config, tokens, DType::kBF16);
    const auto added = [&](WorkspaceOf task, LayerRange range, int64_t samples) {
      model.on_gpus = false;
      const Bytes without = WorkspaceBound(model, task, range, samples);
      model.on_gpus = true;
      return WorkspaceBound(model, task, range, samples) - without;
    };
    ASSERT_LE(config.head_dim, 64);
    const Bytes head(int64_t{4} * rows * 64);
    for (const int64_t samples : {1, 3}) {
      const Bytes sums = head * (samples * config.num_heads * parts + kMostMultiprocessors);
      for (const LayerRange range : {LayerRange{1, 1}, LayerRange{1, 2}}) {
        EXPECT_EQ(added(WorkspaceOf::kBackward, range, samples), sums) << name;
        EXPECT_EQ(added(WorkspaceOf::kKeptBackward, range, samples), sums) << name;
        EXPECT_EQ(added(WorkspaceOf::kForward, range, samples), Bytes()) << name;
        EXPECT_EQ(added(WorkspaceOf::kKeepingForward, range, samples), Bytes()) << name;
      }
      EXPECT_EQ(added(WorkspaceOf::kBackward, {0, 0}, samples), Bytes()) << name;
    }
    // In fp32 one copy is enough, and grouped queries have no kernel.
    model = BuildModelSpec(config, tokens, DType::kF32);
    EXPECT_EQ(added(WorkspaceOf::kBackward, {1, 1}, 3),
              parts == 2 ? Bytes() : head * (3 * config.num_heads))
        << name;
  }
}

TEST(ModelCostTest, FlopsAreTwoPerWeightAndToken) {
  const ModelSpec model = Preset("gpt2-124m");
  double flops = 0;
  for (const LayerSpec& layer : model.layers) flops += ForwardFlops(model, layer.index, 1);
  // 12 blocks of 12 C^2 weights and the head, with a few percent for attention.
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  EXPECT_NEAR(flops / (2 * weights * 256), 1.0, 0.05);
}

TEST(ModelCostTest, WorkspaceGrowsWithTheRangeAndNeverOverflows) {
  const ModelSpec model = Preset("gpt2-124m");
  const auto backward = [&](LayerRange range, int64_t samples) {
    return WorkspaceBound(model, WorkspaceOf::kBackward, range, samples);
  };
  EXPECT_LT(WorkspaceBound(model, WorkspaceOf::kForward, {1, 1}, 2), backward({1, 4}, 2));
  EXPECT_LT(backward({1, 1}, 2), backward({1, 2}, 2));
  EXPECT_GT(backward({0, 13}, int64_t{1} << 60), GiB(1 << 20));
}

TEST(ModelCostTest, KeptActivationsAreWhatTheBlocksSaveAndWhatLiesBetweenThem) {
  const ModelSpec model = Preset("gpt2-124m");
  const Bytes block = KeptBlockBytes(ConfigOf("gpt2-124m"), DType::kF32, 2, 256);
  EXPECT_EQ(block, model.cost_of(1).saved_per_sample * 2);  // no rounding at this size
  EXPECT_EQ(KeptTensorBytes(model.cost_of(1), 2), block);
  EXPECT_EQ(KeptActivationBytes(model, {1, 1}, 2), block);
  EXPECT_EQ(KeptActivationBytes(model, {0, 3}, 2), block * 3 + BoundaryBytes(model, 1, 2) * 2);
  EXPECT_EQ(KeptActivationBytes(model, {0, 0}, 2), Bytes(0));
  EXPECT_LT(WorkspaceBound(model, WorkspaceOf::kKeptBackward, {1, 4}, 2),
            WorkspaceBound(model, WorkspaceOf::kBackward, {1, 1}, 2));
  EXPECT_GT(KeptActivationBytes(model, {0, 12}, int64_t{1} << 60), GiB(1 << 20));
}

TEST(ModelCostTest, FootprintCountsStateAndLogits) {
  const ModelSpec model = Preset("gpt2-124m");
  const Footprint footprint = ComputeFootprint(model, 32, 2);
  EXPECT_EQ(footprint.weights, footprint.gradients);
  EXPECT_EQ(footprint.optimizer_state, footprint.weights * 2);
  EXPECT_GT(footprint.activations, Bytes(int64_t{32} * 256 * 50257 * 4));
  EXPECT_GT(footprint.total(), GiB(4));
  EXPECT_EQ(footprint.masters, Bytes(0));
  EXPECT_STREQ(PrecisionName(model), "fp32");
}

TEST(ModelCostTest, InMixedPrecisionTheFootprintHasMasters) {
  const ModelSpec model = BuildModelSpec(ConfigOf("gpt2-124m"), 256, DType::kBF16);
  const Footprint wide = ComputeFootprint(Preset("gpt2-124m"), 32, 2);
  const Footprint footprint = ComputeFootprint(model, 32, 2);
  EXPECT_EQ(footprint.masters, wide.weights);
  EXPECT_EQ(footprint.optimizer_state, wide.optimizer_state);
  EXPECT_EQ(footprint.total(), footprint.weights + footprint.masters + footprint.gradients +
                                   footprint.optimizer_state + footprint.activations);
  EXPECT_STREQ(PrecisionName(model), "bf16");
}

}  // namespace
}  // namespace harmony::model
