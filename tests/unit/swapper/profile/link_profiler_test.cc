#include "swapper/profile/link_profiler.h"

#include <gtest/gtest.h>

#include "common/ipc/segment.h"
#include "swapper/transfer/sim_copier.h"

namespace harmony::swapper {
namespace {

// Unequal devices: the slow one sets what a copy between them can be, each its own rates.
TEST(LinkProfilerTest, PacedLinksHaveTheirModelledRatesAloneAndTogether) {
  const std::vector<plan::DeviceSpec> devices = *plan::ParseDevices(
      "sim:mem=4MiB,h2d=100MB/s,d2h=50MB/s,p2p=40MB/s "
      "sim:mem=1MiB,h2d=200MB/s,d2h=80MB/s,p2p=20MB/s");
  ipc::Segment segment = *ipc::Segment::Create(MiB(64));
  ipc::SegmentJob job;
  job.id = "profile";
  job.record_count = job.cursor_count = 1;
  std::vector<ipc::MappedRegion> regions;
  for (const plan::DeviceSpec& device : devices) {
    job.extent += profile::LinkSlice(device, devices.size()) * 2;
    regions.push_back(
        *ipc::MappedRegion::Map(ipc::CreateDeviceRegion(device.ordinal, device.memory)->get()));
  }
  ASSERT_TRUE(segment.AllocateJob(job).ok());
  HostArena arena(&segment);
  ASSERT_TRUE(arena.Refresh().ok());
  CopyEngine engine(
      &arena, devices,
      std::make_unique<SimCopier>(arena.data(), devices, std::move(regions), std::vector<int>{}));

  const auto profiles = MeasureLinks(devices, engine, /*quick=*/true);
  ASSERT_TRUE(profiles.ok()) << profiles.status();
  ASSERT_EQ(profiles->size(), 2u);
  // Never faster than modelled (but for the timer's grain); how much slower is the machine's load.
  const auto expect = [](const profile::LinkProfile& link, double rate) {
    for (const profile::Measured& measured : {link.alone, link.duplex, link.together}) {
      EXPECT_LT(measured.median, rate * 1.1);
      EXPECT_GT(measured.median, 0);
      EXPECT_LE(measured.least, measured.median);
      EXPECT_GE(measured.most, measured.median);
    }
    EXPECT_GT(link.latency.median, 0);
  };
  for (size_t d = 0; d < 2; ++d) {
    expect((*profiles)[d].h2d, devices[d].h2d.value);
    expect((*profiles)[d].d2h, devices[d].d2h.value);
    ASSERT_TRUE((*profiles)[d].p2p.has_value());
    expect(*(*profiles)[d].p2p, devices[d].p2p.value);
  }
}

}  // namespace
}  // namespace harmony::swapper
