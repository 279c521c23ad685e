#include "worker/profile/layer_profiler.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_sizes.h"
#include "worker/device/sim_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kTied[] = R"({"model_type": "llama", "vocab_size": 97, "max_position_embeddings": 32,
  "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "tie_word_embeddings": true, "rms_norm_eps": 1e-5, "hidden_act": "silu"})";

absl::StatusOr<LayerProfiler> Profiler(const char* devices, const runtime::ProfileCall& call) {
  const plan::DeviceSpec device = plan::ParseDevices(devices)->front();
  const ipc::UniqueFd fd = *ipc::CreateDeviceRegion(0, device.memory);
  return LayerProfiler::Create(device, MakeSimBackend(*ipc::MappedRegion::Map(fd.get())), call);
}

runtime::ProfileCall Call(const char* config) {
  runtime::ProfileCall call;
  call.request.quick = true;
  call.architecture = *model::ParseArchitecture(config, "config.json");
  call.model = model::BuildModelSpec(call.architecture, 16);
  call.job.sequence_length = 16;
  call.job.global_batch_size = 8;
  call.job.micro_batch_size = 4;
  return call;
}

TEST(LayerProfilerTest, MeasuresALayerOfEachShape) {
  const runtime::ProfileCall call = Call(kTied);
  absl::StatusOr<LayerProfiler> profiler = Profiler("sim:mem=8MiB", call);
  ASSERT_TRUE(profiler.ok()) << profiler.status();
  const auto layers = profiler->MeasureAll();
  ASSERT_TRUE(layers.ok()) << layers.status();
  ASSERT_EQ(layers->size(), 3u);
  for (const profile::LayerProfile& layer : *layers) {
    ASSERT_EQ(layer.sizes.size(), 1u) << layer.kind;
    const profile::LayerSizeProfile& size = layer.sizes[0];
    EXPECT_EQ(size.samples, 4);
    EXPECT_EQ(size.forward.has_value(), layer.kind != "head");
    EXPECT_EQ(size.backward_inner.has_value(), layer.kind == "block");
    EXPECT_EQ(size.keeping_forward.has_value(), layer.kind == "block");
    EXPECT_EQ(size.kept_backward.has_value(), layer.kind == "block");
    EXPECT_GT(size.backward.median, 0);
    EXPECT_GT(layer.zero.median, 0);
    EXPECT_GT(layer.check.median, 0);
  }
  // Held to what the planner counts on: measured peaks stay below it.
  const profile::LayerSizeProfile& block = (*layers)[1].sizes[0];
  EXPECT_LE(block.backward_workspace,
            model::WorkspaceBound(call.model, model::WorkspaceOf::kBackward, {1, 1}, 4));
  EXPECT_LE(block.backward_workspace + block.activation_bytes,
            model::WorkspaceBound(call.model, model::WorkspaceOf::kBackward, {1, 2}, 4));
  EXPECT_GT(block.activation_bytes, Bytes());
}

TEST(LayerProfilerTest, APreparedLayerCanBeRepeated) {
  absl::StatusOr<LayerProfiler> profiler = Profiler("sim:mem=8MiB", Call(kTied));
  ASSERT_TRUE(profiler.ok());
  for (const bool with_forward : {false, true}) {
    for (int layer : {0, 2, 4}) {
      ASSERT_TRUE(profiler->PrepareLayer(layer, 2, with_forward).ok());
      for (int i = 0; i < 3; ++i) {
        const absl::Status status = profiler->RunOnce();
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

// A backward with recompute takes three times as long as the forward.
TEST(LayerProfilerTest, APreparedLayerRunsItsForwardWhereThatIsWanted) {
  const runtime::ProfileCall call = Call(kTied);
  absl::StatusOr<LayerProfiler> profiler = Profiler("sim:mem=8MiB,flops=100M", call);
  ASSERT_TRUE(profiler.ok());
  const double forward = model::ForwardFlops(call.model, 1, 4) / 100e6;
  for (const bool with_forward : {false, true}) {
    ASSERT_TRUE(profiler->PrepareLayer(1, 4, with_forward).ok());
    const auto seconds = profiler->Repeat({3, 3, {}}, [&] { return profiler->RunOnce(); });
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_GE(seconds->least, forward * (with_forward ? 3.96 : 2.97));
    // A busy machine can delay any repetition: the quickest one is held to it.
    if (!with_forward) {
      EXPECT_LT(seconds->least, forward * 3.96);
    }
  }
}

TEST(LayerProfilerTest, PacedTasksTakeTheirModelledTime) {
  const runtime::ProfileCall call = Call(kTied);
  absl::StatusOr<LayerProfiler> profiler = Profiler("sim:mem=8MiB,flops=100M", call);
  const auto layers = profiler->MeasureAll();
  ASSERT_TRUE(layers.ok()) << layers.status();
  const profile::LayerSizeProfile& block = (*layers)[1].sizes[0];
  const double modelled = model::ForwardFlops(call.model, 1, 4) / 100e6;
  EXPECT_GE(block.forward->median, modelled * 0.99);
  EXPECT_GE(block.backward.median, modelled * 2.97);
  // What one more layer adds, and what a backward adds to its forward, are differences of two
  // medians, which delays of the first make smaller; their sums are what both took.
  EXPECT_GE(block.backward.median + block.backward_inner->median, modelled * 5.94);
  EXPECT_GE(block.keeping_forward->median, modelled * 0.99);
  EXPECT_GE(block.kept_backward->median + block.keeping_forward->median, modelled * 2.97);
  // Nothing is charged for the recomputation left out. A busy machine can delay any repetition, so
  // the quickest one is held to it.
  EXPECT_LT(block.kept_backward->least, modelled * 2.97);
  EXPECT_EQ((*layers)[1].zero.median, 0);  // within the modelled time
}

TEST(LayerProfilerTest, ALayerThatFitsAtNoSizeIsNamed) {
  runtime::ProfileCall call = Call(kTied);
  std::get<model::ModelConfig>(call.architecture).hidden_size = 512;
  call.model = model::BuildModelSpec(call.architecture, 16);
  absl::StatusOr<LayerProfiler> profiler = Profiler("sim:mem=1MiB", call);
  const absl::Status status = profiler->MeasureAll().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("with micro_batch_size 4"));
}

}  // namespace
}  // namespace harmony::worker
