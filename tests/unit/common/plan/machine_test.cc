#include "common/plan/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace harmony::plan {
namespace {

using ::testing::HasSubstr;

TEST(ParseDevicesTest, ReadsCountsAndPacing) {
  const auto devices = ParseDevices("sim*4:mem=64MiB,flops=20G,h2d=1GB/s,d2h=2GB/s,p2p=3GB/s");
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 4u);
  EXPECT_EQ((*devices)[3].ordinal, 3);
  EXPECT_EQ((*devices)[3].memory, MiB(64));
  EXPECT_DOUBLE_EQ((*devices)[3].flops.value, 20e9);
  EXPECT_DOUBLE_EQ((*devices)[3].d2h.value, 2e9);
}

TEST(ParseDevicesTest, JoinsSeveral) {
  const auto devices = ParseDevices("cuda:0;cuda:0 cuda:1,mem=20GiB");
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 3u);
  EXPECT_EQ((*devices)[1].kind, DeviceKind::kCuda);
  EXPECT_EQ((*devices)[2].cuda_ordinal, 1);
  EXPECT_EQ((*devices)[2].memory, GiB(20));
}

TEST(ParseDevicesTest, SaysWhoCopies) {
  const auto devices = ParseDevices("sim:mem=1GiB,copies=worker sim:mem=1GiB,copies=swapper");
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_TRUE(devices->front().worker_copies);
  EXPECT_FALSE(devices->back().worker_copies);
  for (const char* text :
       {"sim:mem=1073741824,copies=worker", "cuda:1,mem=2097152,copies=worker"}) {
    EXPECT_EQ(ToString(ParseDevices(text)->front()), text);
  }
}

TEST(ParseDevicesTest, AllDevicesBelongToOneHost) {
  const auto devices = ParseDevices("sim:mem=1GiB sim:mem=2GiB,host=50GB/s");
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ(devices->front().host.value, 50e9);
  EXPECT_EQ(HostRate(*devices).value, 50e9);
  EXPECT_EQ(HostRate(*ParseDevices("sim*2:mem=1GiB")).value, 0);
}

TEST(ParseDevicesTest, TheHostOfPacedDevicesIsPaced) {
  EXPECT_EQ(PacedHostRate(*ParseDevices("sim*2:mem=1GiB,host=1GB/s")).value, 0);
  EXPECT_EQ(PacedHostRate(*ParseDevices("sim:mem=1GiB,flops=1G sim:mem=1GiB")).value, 0);
  EXPECT_EQ(PacedHostRate(*ParseDevices("sim*2:mem=1GiB,flops=1G")).value, kHostGuess.value);
  EXPECT_EQ(PacedHostRate(*ParseDevices("sim*2:mem=1GiB,flops=1G,host=1GB/s")).value, 1e9);
}

TEST(ParseDevicesTest, AllSpeedsAreArithmeticAndAllLinks) {
  EXPECT_TRUE(AllSpeedsGiven(*ParseDevices("sim:mem=1MiB,flops=1M,h2d=1GB/s,d2h=1GB/s")));
  EXPECT_FALSE(AllSpeedsGiven(*ParseDevices("sim*2:mem=1MiB,flops=1M,h2d=1GB/s,d2h=1GB/s")));
  EXPECT_TRUE(
      AllSpeedsGiven(*ParseDevices("sim*2:mem=1MiB,flops=1M,h2d=1GB/s,d2h=1GB/s,p2p=1GB/s")));
  EXPECT_FALSE(AllSpeedsGiven(*ParseDevices("sim:mem=1MiB,h2d=1GB/s,d2h=1GB/s")));
  EXPECT_FALSE(AllSpeedsGiven(*ParseDevices("cuda:0")));
}

TEST(ParseDevicesTest, PrintedDevicesParseToThemselves) {
  for (const char* text : {"sim:mem=256MiB", "sim:mem=1GiB,flops=1.5T,h2d=800MiB/s", "cuda:3",
                           "cuda:1,mem=20GiB", "sim:mem=1GiB,h2d=1GB/s,d2h=1GB/s,root=left0",
                           "sim:mem=80GiB,context=500MB,flops=1T", "sim:mem=1GiB,host=50GB/s"}) {
    const auto once = ParseDevices(text);
    ASSERT_TRUE(once.ok()) << text;
    const auto twice = ParseDevices(ToString(once->front()));
    ASSERT_TRUE(twice.ok()) << ToString(once->front());
    EXPECT_EQ(ToString(once->front()), ToString(twice->front()));
    EXPECT_DOUBLE_EQ(once->front().h2d.value, twice->front().h2d.value);
  }
}

TEST(ParseDevicesTest, NamesWhatIsWrong) {
  for (const auto& [text, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "none given"},
           {"gpu:0", "unknown kind"},
           {"sim", "needs mem="},
           {"sim*0:mem=1GiB", "*N"},
           {"sim*65:mem=1GiB", "*N"},
           {"sim*x:mem=1GiB", "*N"},
           {"simulator:mem=1GiB", "*N"},
           {"sim:mem=1XiB", "1XiB"},
           {"sim:mem", "key=value"},
           {"sim:mem=1GiB,mem=1GiB", "twice"},
           {"sim:mem=1GiB,speed=3", "unknown key"},
           {"sim:mem=1GiB,h2d=0", "above 0"},
           {"sim:mem=1GiB,h2d=1e-30", "from 1kB/s"},
           {"sim:mem=1GiB,h2d=999B/s", "'h2d=999B/s': must be from 1kB/s"},
           {"sim:mem=1GiB,host=1e19GB/s", "from 1kB/s to 1e18B/s"},
           {"sim:mem=1GiB,flops=0.001", "from 1M"},
           {"sim:mem=1GiB,flops=1e10P", "to 1000P"},
           {"sim:mem=1e18", "at most"},
           {"sim:mem=1GiB,h2d=1GB/s,d2h=1GB/s,root=a;sim:mem=1GiB,h2d=2GB/s,d2h=1GB/s,root=a",
            "device 1 has another h2d= or d2h= than device 0"},
           {"sim:mem=1GiB,h2d=1GB/s,d2h=1GB/s,root=a;sim:mem=1GiB,h2d=1GB/s,d2h=2GB/s,root=a",
            "which is one link"},
           {"sim:mem=1GiB,context=1GiB", "leaves less than 1MiB"},
           {"sim:mem=1GiB,h2d=1GB/s,root=a", "need h2d= and d2h="},
           {"sim:mem=1GiB,host=0GB/s", "above 0"},
           {"sim:mem=1GiB,host=5GB/s sim:mem=2GiB sim:mem=2GiB,host=6GB/s", "one host"},
           {"sim:mem=1GiB,h2d=1GB/s,d2h=1GB/s,root=a b", "unknown kind"},
           {"sim:mem=1GiB,h2d=1GB/s,d2h=1GB/s,root=a_b", "letters and digits"},
           {"sim:mem=1GiB,h2d=1GB/s,d2h=1GB/s,root=", "letters and digits"},
           {"sim:mem=5", "at least"},
           {"cuda", "needs its number"},
           {"cuda:x", "not the number"},
           {"cuda:0,flops=1G", "known of a cuda device: mem, copies"},
           {"sim:mem=1GiB,copies=me", "must be worker or swapper"},
           {"sim:mem=1GiB,h2d=1GB/s,d2h=1GB/s,root=a,copies=worker", "root="},
           {"cuda:0;sim:mem=1GiB", "either all sim or all cuda"}}) {
    const auto devices = ParseDevices(text);
    EXPECT_EQ(devices.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(devices.status().message()), HasSubstr(part)) << text;
  }
}

TEST(MachineTest, AdviceOfMemoryIsTheLeastThatHasSoMuchUsable) {
  DeviceSpec gpu;
  gpu.kind = DeviceKind::kCuda;
  for (const Bytes usable : {MiB(1), MiB(30), MiB(959), MiB(960), MiB(961), GiB(3), GiB(79)}) {
    gpu.memory = gpu.MemoryFor(usable);
    EXPECT_EQ(gpu.memory.count() % kGpuPage.count(), 0);
    EXPECT_GE(gpu.usable(), usable);
    gpu.memory -= kGpuPage;
    EXPECT_LT(gpu.usable(), usable);
  }
  DeviceSpec sim;
  sim.context = MiB(3);
  EXPECT_EQ(sim.MemoryFor(MiB(7)), MiB(10));
}

}  // namespace
}  // namespace harmony::plan
