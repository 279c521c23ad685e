#include "coordinator/service/jobs/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan/arena_layout.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::service {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Bytes kDevice = MiB(512);  // gradients of the head leave it in parts

// gpt2-124m on one device; the host's segment has room for everything.
class AdmissionTest : public ::testing::Test {
 protected:
  AdmissionTest() {
    const std::string data = absl::StrCat(dir_.path(), "/tokens.bin");
    std::ofstream(data, std::ios::binary) << std::string(size_t{1} << 20, '\0');
    request_.path = absl::StrCat(dir_.path(), "/job.yaml");
    request_.yaml = absl::StrCat(
        R"({"model_name_or_path": "gpt2-124m", "sequence_length": 256,
        "global_batch_size": 32, "micro_batch_size": 2, "max_steps": 4,
        "mode": "harmony-pp", "layer_groups": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], "output_dir": ")",
        dir_.path(), R"(/out", "data": {"format": "tokens-u32", "path": ")", data, "\"}}");
    request_.working_directory = dir_.path();
    machine_.devices = *plan::ParseDevices(absl::StrCat("sim:mem=", kDevice.count()));
    machine_.host_memory = GiB(64);
    limits_.arena = machine_.host_memory;
  }
  absl::StatusOr<AdmittedJob> Plan() { return PlanJob(request_, machine_, limits_); }
  static Bytes ArenaOf(const AdmittedJob& job) {
    return plan::ArenaLayout(job.model, job.plan).end();
  }

  io::TempDir dir_;
  JobRequest request_;
  plan::MachineSpec machine_;
  HostLimits limits_;
};

TEST_F(AdmissionTest, ReplicasAreFewerWhereOtherProgramsHaveTakenTheMemory) {
  const absl::StatusOr<AdmittedJob> many = Plan();
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(many->plan.replicas, 16);
  EXPECT_THAT(many->notes, IsEmpty());
  request_.overrides = {"virtual_replicas=1"};
  const absl::StatusOr<AdmittedJob> one = Plan();
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_LT(ArenaOf(*one) * 2, ArenaOf(*many));
  request_.overrides.clear();
  limits_.available = kDevice + Bytes(ArenaOf(*many).count() / 2);
  const absl::StatusOr<AdmittedJob> fewer = Plan();
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_LT(fewer->plan.replicas, 16);
  EXPECT_THAT(fewer->notes, Contains(HasSubstr("virtual_replicas: auto is ")));
  limits_.available = kDevice + GiB(1);  // parameters and moments take more
  EXPECT_THAT(Plan().status().message(), HasSubstr("memory of this machine"));
}

}  // namespace
}  // namespace harmony::service
