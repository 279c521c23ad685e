#include "common/profile/profile_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/families/causal_lm.h"
#include "common/model/model_config.h"
#include "common/model/model_sizes.h"
#include "common/profile/profile_json.h"
#include "tests/support/sample_profile.h"

namespace harmony::profile {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

model::ModelSpec Preset(const char* name, int64_t tokens = 128) {
  return model::BuildModelSpec(*model::ParseModelConfig(*model::PresetConfigJson(name), name),
                               tokens);
}

job::JobSpec Job() {
  job::JobSpec job;
  job.sequence_length = 128;
  job.global_batch_size = 16;
  return job;
}

// 10 GFLOP/s on each device, links of 2 GB/s out and 4 GB/s in.
Profile SpeedsOf(const CalibrationWork& work) {
  Profile speeds;
  speeds.versions.cores = 2;
  speeds.host = {"adamw",      Exactly(5e9),  Exactly(6e9), Exactly(1e9),
                 Exactly(2e9), Exactly(1e-6), Exactly(1e-6)};
  for (size_t d = 0; d < work.devices.size(); ++d) {
    DeviceProfile& device = speeds.devices.emplace_back();
    device.h2d = {Exactly(1e-6), Exactly(4e9), Exactly(4e9), Exactly(4e9)};
    device.d2h = {Exactly(1e-6), Exactly(2e9), Exactly(2e9), Exactly(2e9)};
    device.p2p = device.d2h;
    LayerSizeProfile size;
    size.backward = Exactly(3 * work.forward_flops / 10e9);
    device.layers.emplace_back().sizes = {size};
  }
  return speeds;
}

TEST(ProfileEstimateTest, WhatIsMeasuredIsAMatterOfMoments) {
  for (const char* name : {"gpt2-mini", "gpt2-124m", "gpt2-xl"}) {
    job::JobSpec job = Job();
    job.sequence_length = 256;
    job.global_batch_size = 64;
    const model::ModelSpec model = Preset(name, 256);
    const auto work = CalibrationWorkOf(model, *model::PresetConfigJson(name), job, 8);
    ASSERT_TRUE(work.ok()) << work.status();
    EXPECT_EQ(work->devices.size(), kMostCalibrated);
    EXPECT_LE(work->forward_flops, 2e9) << name;
    EXPECT_EQ(work->model.cost_of(work->layer).name, "block");
    const Bytes need =
        model::WorkspaceBound(work->model, model::WorkspaceOf::kBackward,
                              {work->layer, work->layer}, work->job.global_batch_size);
    EXPECT_LT(need, work->devices[0].memory) << name;
  }
}

TEST(ProfileEstimateTest, LayersTakeTheirFlopsAtTheSpeedMeasured) {
  const model::ModelSpec model = Preset("gpt2-mini");
  const std::vector<plan::DeviceSpec> devices = *plan::ParseDevices("sim*2:mem=64MiB");
  const auto work = CalibrationWorkOf(model, *model::PresetConfigJson("gpt2-mini"), Job(), 2);
  ASSERT_TRUE(work.ok()) << work.status();
  const Profile profile = EstimateProfile(*work, SpeedsOf(*work), model, Job(), devices);
  EXPECT_TRUE(profile.calibrated);
  EXPECT_TRUE(CheckProfile(profile, "P", model, Job(), devices).ok());
  for (const LayerProfile& layer : profile.devices[1].layers) {
    const double flops = model::ForwardFlops(model, layer.layers[0], 16);
    const double seconds = InterpolateSeconds(
        layer.sizes, 16, [](const LayerSizeProfile& size) { return size.backward.median; });
    EXPECT_NEAR(seconds, 3 * flops / 10e9, 1e-4);
  }
  const auto read = ParseProfile(ProfileToJson(profile), "P");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, profile);
  const std::string text = DescribeEstimate(profile, model, devices);
  EXPECT_THAT(text, HasSubstr("layers by their FLOPs at 10 GFLOP/s (calibrated)"));
  EXPECT_THAT(text, HasSubstr("copies in 4 GB/s (calibrated), out 2 GB/s (calibrated)"));
  EXPECT_THAT(text, HasSubstr("updates at 5 GB/s (calibrated)"));
  EXPECT_THAT(text, Not(HasSubstr("modelled")));
}

TEST(ProfileEstimateTest, SpeedsThatAreGivenComeFirst) {
  const model::ModelSpec model = Preset("gpt2-mini");
  const std::vector<plan::DeviceSpec> devices =
      *plan::ParseDevices("sim:mem=64MiB,flops=1G;sim:mem=64MiB,h2d=1GB/s");
  const auto work = CalibrationWorkOf(model, *model::PresetConfigJson("gpt2-mini"), Job(), 2);
  ASSERT_TRUE(work.ok()) << work.status();
  const Profile profile = EstimateProfile(*work, SpeedsOf(*work), model, Job(), devices);
  EXPECT_EQ(profile.devices[1].h2d.together.median, 1e9);
  EXPECT_EQ(profile.devices[0].h2d.together.median, 4e9);
  const std::string text = DescribeEstimate(profile, model, devices);
  EXPECT_THAT(text, HasSubstr("at 1 GFLOP/s (modelled)"));
  EXPECT_THAT(text, HasSubstr("at 10 GFLOP/s (calibrated), copies in 1 GB/s (modelled)"));
}

TEST(ProfileEstimateTest, TheHostOfPacedDevicesHasItsModelledSpeed) {
  const model::ModelSpec model = Preset("gpt2-mini");
  const std::vector<plan::DeviceSpec> devices =
      *plan::ParseDevices("sim*2:mem=64MiB,flops=1G,host=1GB/s");
  const auto work = CalibrationWorkOf(model, *model::PresetConfigJson("gpt2-mini"), Job(), 2);
  ASSERT_TRUE(work.ok()) << work.status();
  const Profile profile = EstimateProfile(*work, SpeedsOf(*work), model, Job(), devices);
  EXPECT_EQ(profile.host.norm_rate.median, 1e9);
  EXPECT_THAT(DescribeEstimate(profile, model, devices), HasSubstr("updates at 1 GB/s (modelled)"));
}

// Four were measured together, each at half the speed of a core.
TEST(ProfileEstimateTest, EightDevicesOnTwoCoresTakeTurns) {
  const model::ModelSpec model = Preset("gpt2-mini");
  const std::vector<plan::DeviceSpec> devices = *plan::ParseDevices("sim*8:mem=64MiB");
  const auto work = CalibrationWorkOf(model, *model::PresetConfigJson("gpt2-mini"), Job(), 8);
  ASSERT_TRUE(work.ok()) << work.status();
  const Profile profile = EstimateProfile(*work, SpeedsOf(*work), model, Job(), devices);
  const std::string text = DescribeEstimate(profile, model, devices);
  EXPECT_THAT(text, HasSubstr("at 20 GFLOP/s (calibrated)"));
  EXPECT_THAT(text, HasSubstr("; 2 of 8 devices compute at a time, for they share cores"));
  for (const DeviceProfile& device : profile.devices) EXPECT_EQ(device.together, 4);
  const std::vector<plan::DeviceSpec> paced = *plan::ParseDevices("sim*8:mem=64MiB,flops=1G");
  for (const DeviceProfile& device :
       EstimateProfile(*work, SpeedsOf(*work), model, Job(), paced).devices) {
    EXPECT_EQ(device.together, 1);
  }
}

TEST(ProfileEstimateTest, OneMoreDeviceIsLikeTheLast) {
  const model::ModelSpec model = Preset("gpt2-mini");
  const auto with_one_more = [&](const char* text, double together, int cores) {
    const std::vector<plan::DeviceSpec> devices = *plan::ParseDevices(text);
    Profile profile = testing_support::SampleProfile(model, Job(), devices);
    profile.versions.cores = cores;
    profile.devices.back().h2d.latency = Exactly(5e-3);
    profile.devices.back().d2h.duplex = Exactly(1e6);
    profile.devices.back().together = together;
    return std::pair(profile, WithOneMoreDevice(profile, devices));
  };
  for (const char* two : {"sim*2:mem=64MiB", "cuda:0,mem=1GiB;cuda:1,mem=1GiB"}) {
    const auto [before, after] = with_one_more(two, 1, 3);
    ASSERT_TRUE(after.has_value()) << two;
    ASSERT_EQ(after->devices.size(), 3);
    EXPECT_EQ(after->devices[1], before.devices[1]);
    EXPECT_EQ(after->devices[2], before.devices[1]);
    EXPECT_FALSE(with_one_more(two, 1.5, 3).second.has_value()) << "they share what computes";
  }
  EXPECT_FALSE(with_one_more("sim*2:mem=64MiB", 1, 2).second.has_value()) << "no core is left";
  EXPECT_TRUE(with_one_more("sim*2:mem=64MiB,flops=1G", 1, 2).second.has_value()) << "it is paced";
  EXPECT_FALSE(with_one_more("sim:mem=64MiB", 1, 1).second.has_value()) << "no core is left";
  for (const char* single : {"sim:mem=64MiB", "cuda:0,mem=1GiB"}) {
    const auto [before, after] = with_one_more(single, 1, 2);
    ASSERT_TRUE(after.has_value()) << single;
    ASSERT_EQ(after->devices.size(), 2);
    EXPECT_EQ(after->devices[0].p2p, before.devices[0].d2h) << "the slower link";
    EXPECT_EQ(after->devices[1], after->devices[0]);
  }
  const auto given = with_one_more("sim:mem=64MiB,flops=1G,p2p=3GB/s", 1, 2).second;
  ASSERT_TRUE(given.has_value());
  EXPECT_EQ(given->devices[1].p2p->together, Exactly(3e9));
}

}  // namespace
}  // namespace harmony::profile
