#include "common/profile/plausible.h"

#include "common/model/families/causal_lm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sample_profile.h"

namespace harmony::profile {
namespace {

Profile Sample(const char* devices = "sim*4:mem=64MiB") {
  const model::ModelSpec model = model::BuildModelSpec(
      *model::ParseModelConfig(*model::PresetConfigJson("gpt2-mini"), "gpt2-mini"), 64);
  job::JobSpec job;
  job.sequence_length = 64;
  job.global_batch_size = 12;
  return testing_support::SampleProfile(model, job, *plan::ParseDevices(devices));
}

LayerProfile& BlockOf(Profile& profile) { return profile.devices[0].layers[1]; }

TEST(PlausibleTest, LeavesWhatIsPossibleAsItIs) {
  Profile profile = Sample();
  for (double together : {1.0, 1.7, 4.0}) {
    profile.devices[2].together = together;
    EXPECT_EQ(Plausible(profile), profile) << together;
  }
}

TEST(PlausibleTest, DevicesNeitherHelpEachOtherNorDoLessThanOneOfThem) {
  Profile profile = Sample();
  profile.devices[0].together = 0.4;
  profile.devices[1].together = 9;
  const Profile plausible = Plausible(profile);
  EXPECT_EQ(plausible.devices[0].together, 1);
  EXPECT_EQ(plausible.devices[1].together, 4);
  Profile single = Sample("sim:mem=64MiB");
  single.devices[0].together = 3;
  EXPECT_EQ(Plausible(single).devices[0].together, 1);
}

TEST(PlausibleTest, ABusyLinkIsNoFasterAndAllOfThemAreNoSlowerThanOne) {
  Profile profile = Sample();
  profile.devices[0].h2d.alone = Exactly(2e8);  // duplex 8e8
  profile.devices[1].d2h.together = Exactly(1e7);
  profile.devices[1].p2p->together = Exactly(1e7);
  profile.devices[2].h2d.duplex = Exactly(1e7);
  const Profile plausible = Plausible(profile);
  EXPECT_EQ(plausible.devices[0].h2d.alone.median, 8e8);
  EXPECT_EQ(plausible.devices[1].d2h.together.median, 1e9 / 8);
  EXPECT_EQ(plausible.devices[1].p2p->together.median, 1e9 / 4);
  EXPECT_EQ(plausible.devices[2].h2d.duplex.median, 5e8);
}

TEST(PlausibleTest, MoreSamplesTakeNoLessTime) {
  Profile profile = Sample();
  std::vector<LayerSizeProfile>& sizes = BlockOf(profile).sizes;
  sizes[0].backward_inner = Measured{0.9, 0.8, 1.5};
  sizes[0].forward = Exactly(0.4);
  const Profile plausible = Plausible(profile);
  const std::vector<LayerSizeProfile>& put_right = plausible.devices[0].layers[1].sizes;
  EXPECT_EQ(put_right[0].backward_inner->median, sizes[1].backward_inner->median);
  EXPECT_EQ(put_right[0].backward_inner->least, sizes[1].backward_inner->median);
  EXPECT_EQ(put_right[0].forward->median, sizes[1].forward->median);
  EXPECT_EQ(put_right[2], sizes[2]);
}

TEST(PlausibleTest, PartsOfATaskTakeNoLongerThanAllOfIt) {
  Profile profile = Sample();
  LayerSizeProfile& size = BlockOf(profile).sizes[2];
  size.backward = Exactly(0.5);
  size.kept_backward = Exactly(0.6);
  const Profile plausible = Plausible(profile);
  const LayerSizeProfile& put_right = plausible.devices[0].layers[1].sizes[2];
  EXPECT_EQ(put_right.backward.median, size.backward_inner->median);
  EXPECT_EQ(put_right.kept_backward->median, size.backward_inner->median);
}

TEST(SpreadTest, IsThatOfTheTypicalLayerAndLink) {
  Profile profile = Sample();
  EXPECT_EQ(SpreadOf(profile).layers, 1) << "nothing was repeated";
  EXPECT_EQ(SpreadOf(profile).links, 1);
  for (LayerSizeProfile& size : BlockOf(profile).sizes) size.backward = {1.03, 1, 1.25};
  BlockOf(profile).sizes[0].forward = {1.03, 1, 50};  // one of four
  profile.devices[0].h2d.alone = {0.9e9, 0.4e9, 1e9};
  const Spread spread = SpreadOf(profile);
  EXPECT_NEAR(spread.layers, 1.25, 1e-9);
  EXPECT_NEAR(spread.links, 2.5, 1e-9);
  EXPECT_FALSE(MeasuredUnderLoad(spread));
}

TEST(SpreadTest, OfABusyMachineSaysSo) {
  Profile profile = Sample();
  for (LayerSizeProfile& size : BlockOf(profile).sizes) size.backward = {1.04, 1, 3};
  EXPECT_TRUE(MeasuredUnderLoad(SpreadOf(profile)));
  EXPECT_EQ(DebugString(SpreadOf(profile)),
            "some repeats took 3 times as long for a layer as others");
  profile = Sample();
  profile.devices[0].h2d.alone = {0.9e9, 0.05e9, 1e9};
  EXPECT_TRUE(MeasuredUnderLoad(SpreadOf(profile)));
  EXPECT_EQ(DebugString(SpreadOf(profile)),
            "some repeats took 20 times as long for a copy as others");
}

}  // namespace
}  // namespace harmony::profile
