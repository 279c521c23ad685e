#include "client/progress/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/units.h"

namespace harmony::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ResultOf;

v1::Progress Sample() {
  v1::Progress progress;
  progress.mutable_job()->set_job_id("job-7");
  progress.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
  progress.mutable_job()->set_max_steps(100);
  progress.mutable_job()->set_output_dir("/out");
  progress.set_step(20);
  progress.set_loss(5.12345);
  progress.set_grad_norm(1.5);
  progress.set_learning_rate(3e-4);
  progress.set_tokens_per_second(1234.4);
  progress.set_seconds_left(125);
  progress.set_generation(1);
  progress.mutable_swap_last_step()->set_weights(3 << 20);
  progress.mutable_swap_last_step()->set_gradients(1 << 20);
  progress.mutable_swap_total()->set_weights(60 << 20);
  progress.mutable_swap_total()->set_gradients(20 << 20);
  progress.mutable_swap_minimum_per_step()->set_weights(3 << 20);
  progress.mutable_swap_minimum_per_step()->set_gradients(1 << 20);
  progress.set_host_bytes(int64_t{1} << 30);
  progress.set_host_capacity(int64_t{4} << 30);
  for (int i = 0; i < 2; ++i) {
    v1::DeviceProgress* device = progress.add_devices();
    device->set_device(i);
    device->set_spec("sim:mem=512MiB");
    device->set_state(i == 0 ? "running" : "waiting");
    device->set_current(i == 0 ? "backward layers 3-5, microbatch 2 of 8, step 21" : "");
    device->set_memory_cap(512 << 20);
    device->set_resident_bytes(256 << 20);
    device->set_workspace_peak(128 << 20);
    device->set_peak_bytes(400 << 20);
    device->set_h2d_bytes_per_second(1.25e9);
    device->set_d2h_bytes_per_second(3e6);
    device->set_computing_share(0.5);
    device->set_waiting_share(0.2);
    device->set_idle_share(0.3);
  }
  return progress;
}

TEST(RenderFrame, ShowsTheStepTimeBesideThePlannedOne) {
  v1::Progress progress = Sample();
  progress.set_seconds_per_step(0.4125);
  progress.set_predicted_seconds_per_step(0.3);
  progress.set_drift(0.375);
  progress.set_faults(2);
  const std::vector<std::string> frame = RenderFrame(progress, 79, 24);
  EXPECT_EQ(frame[2], "step 0.412 s, planned 0.3 s (+38%)  host memory 1.00 GiB of 4.00 GiB");
  EXPECT_EQ(frame[3], "recovered from 2 faults");
}

TEST(RenderFrame, ShowsTheJobTwoLinesADeviceAndWhatTheSignsMean) {
  EXPECT_THAT(
      RenderFrame(Sample(), 79, 24),
      ElementsAre("job-7  running  step 20/100  loss 5.1235  lr 0.0003  1234 tokens/s",
                  "[#####                   ]  20%  2 min 5 s left  swap 4.00 MiB/step",
                  "host memory 1.00 GiB of 4.00 GiB",
                  "device 0  running memory [####++  ] 384/512 MiB  in 1.25 GB/s  out 3 MB/s",
                  "    time [####--..] 50% backward layers 3-5, microbatch 2 of 8, step 21",
                  "device 1  waiting memory [####++  ] 384/512 MiB  in 1.25 GB/s  out 3 MB/s",
                  "    time [####--..] 50% ",
                  "memory: # data  + workspace   time: # computing  - waiting  . idle"));
}

TEST(RenderFrame, WhatDoesNotFitGoesAsAWhole) {
  v1::Progress progress = Sample();
  progress.mutable_devices(0)->set_p2p_bytes_per_second(12e9);
  EXPECT_THAT(RenderFrame(progress, 120, 24)[3], ::testing::EndsWith("  to devices 12.00 GB/s"));
  EXPECT_THAT(RenderFrame(progress, 79, 24)[3], ::testing::EndsWith("  out 3 MB/s"));
}

TEST(RenderFrame, ShowsWhatGpusTellOfThemselvesWhereThereIsRoom) {
  v1::Progress progress = Sample();
  v1::GpuReadings* gpu = progress.mutable_devices(1)->mutable_gpu();
  gpu->set_temperature_celsius(61);
  EXPECT_EQ(RenderFrame(progress, 79, 24)[7], "    GPU  61 C");
  gpu->set_sm_clock_mhz(1980);
  gpu->set_memory_clock_mhz(2619);
  gpu->set_memory_used_bytes(GiB(71).count());
  gpu->set_memory_bytes(GiB(140).count());
  gpu->set_pcie_in_bytes_per_second(25'100'000'000);
  gpu->set_pcie_out_bytes_per_second(3'000'000);
  const std::string line =
      "    GPU  61 C  SM 1980 MHz  PCIe in 25.10 GB/s out 3 MB/s  71.0/140.0 GiB";
  EXPECT_EQ(RenderFrame(progress, 79, 24)[7], line);
  EXPECT_EQ(RenderFrame(progress, 120, 24)[7], line + "  memory 2619 MHz");
  // Three lines of the job, two a device, one of the GPU and the legend.
  EXPECT_EQ(RenderFrame(progress, 120, 9)[7], line + "  memory 2619 MHz");
  EXPECT_EQ(RenderFrame(progress, 120, 8), RenderFrame(Sample(), 120, 8));
}

TEST(RenderFrame, FitsAnyTerminal) {
  v1::Progress progress = Sample();
  for (int i = 2; i < 16; ++i) *progress.add_devices() = progress.devices(0);
  for (int width : {1, 20, 80, 300}) {
    for (int height : {1, 2, 3, 10, 18, 40}) {
      std::vector<std::string> frame = RenderFrame(progress, width, height);
      EXPECT_LE(frame.size(), static_cast<size_t>(height));
      EXPECT_THAT(frame, Each(ResultOf([](const std::string& line) { return line.size(); },
                                       ::testing::Le(static_cast<size_t>(width)))));
    }
  }
  EXPECT_EQ(RenderFrame(progress, 80, 10).back(), "    and 10 more devices");
}

TEST(RenderFrame, OneLineADeviceWhereHeightIsShort) {
  EXPECT_THAT(RenderFrame(Sample(), 79, 6)[3],
              "device 0  running memory [####++  ] time [####--..] backward layers 3-5, microb");
}

TEST(RenderFrame, BeforeTheFirstStepThereAreNoFigures) {
  v1::Progress progress;
  progress.mutable_job()->set_job_id("job-1");
  progress.mutable_job()->set_state(v1::JOB_STATE_STARTING);
  EXPECT_THAT(RenderFrame(progress, 80, 24),
              ElementsAre("job-1  starting  step 0/0", "[                        ]   0%"));
}

TEST(Redraw, MovesUpClearsAndScrollsMessagesAbove) {
  EXPECT_EQ(Redraw(0, {}, {"a", "b"}), "a\x1b[K\nb\x1b[K\n\x1b[J");
  EXPECT_EQ(Redraw(2, {"fault"}, {"c"}), "\x1b[2A\rfault\x1b[K\nc\x1b[K\n\x1b[J");
}

TEST(RenderStepLine, IsOnePlainLine) {
  EXPECT_EQ(RenderStepLine(Sample()),
            "step 20/100  loss 5.1235  lr 0.0003  1234 tokens/s  2 min 5 s left  norm 1.5  swap "
            "4.00 MiB");
}

TEST(RenderStepLine, LeavesOutWhatIsNotMeasured) {
  v1::Progress progress;
  progress.mutable_job()->set_max_steps(100);
  progress.set_step(20);
  progress.set_loss(2.5);
  EXPECT_EQ(RenderStepLine(progress), "step 20/100  loss 2.5000");
}

TEST(RenderSummary, PutsSwapBesideItsMinimumAndPeaksBesideCaps) {
  RunSummary summary{Sample(), 1200, 1};
  summary.last.mutable_job()->set_state(v1::JOB_STATE_FINISHED);
  EXPECT_EQ(RenderSummary(summary), R"(
job-7 finished: step 20 of 100, loss 5.1235, 1200 tokens/s, recovered from 1 fault

swap       total      last step  minimum a step  ratio
weights    60.00 MiB  3.00 MiB   3.00 MiB        1.00
gradients  20.00 MiB  1.00 MiB   1.00 MiB        1.00

device            peak memory  cap         used
0 sim:mem=512MiB  400.00 MiB   512.00 MiB  78%
1 sim:mem=512MiB  400.00 MiB   512.00 MiB  78%

model: /out/final
)");
  summary.last.mutable_job()->set_summary("figures of the coordinator");
  EXPECT_EQ(RenderSummary(summary), R"(
job-7 finished: step 20 of 100, recovered from 1 fault

figures of the coordinator

model: /out/final
)");
}

TEST(Parts, SecondsRatesAndBars) {
  EXPECT_EQ(RenderSeconds(0.4), "0 s");
  EXPECT_EQ(RenderSeconds(59.6), "1 min");
  EXPECT_EQ(RenderSeconds(13'440), "3 h 44 min");
  EXPECT_EQ(RenderSeconds(1e18), "104166 d 16 h");
  EXPECT_EQ(RenderRate(0), "0 B/s");
  EXPECT_EQ(RenderRate(980e3), "980 kB/s");
  EXPECT_EQ(RenderRate(2.5e9), "2.50 GB/s");
  EXPECT_EQ(RenderBar({{0.5, '#'}, {0.25, '-'}}, 8), "####--  ");
  EXPECT_EQ(RenderBar({{3.0, '#'}}, 4), "####");
  EXPECT_EQ(RenderBar({{-1.0, '#'}, {0.5, '.'}}, 4), "..  ");
}

}  // namespace
}  // namespace harmony::client
