#include "client/commands/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace harmony::client {
namespace {

using ::testing::HasSubstr;

// A machine without anything to say of it.
MachineFacts Fine() {
  MachineFacts facts;
  facts.cores = 8;
  facts.avx2 = facts.avx512 = true;
  facts.available = GiB(40);
  facts.total = GiB(64);
  facts.huge_pages = "madvise";
  facts.open_files = facts.open_files_most = 4096;
  facts.locked_memory = facts.total;
  facts.real_time_priority = 2;
  facts.kernel_major = 6;
  facts.version = "1.2.3";
  facts.programs = {{"/bin/harmony-worker", true, "1.2.3"}};
  facts.disks = {{"job database and logs", "/var/lib/harmony", GiB(100)}};
  return facts;
}

// What is not good, a line each.
std::vector<std::string> Complaints(const MachineFacts& facts) {
  std::vector<std::string> lines;
  for (const Finding& finding : Examine(facts)) {
    EXPECT_EQ(finding.verdict == Verdict::kGood, finding.advice.empty()) << finding.what;
    if (finding.verdict == Verdict::kGood) continue;
    lines.push_back((finding.verdict == Verdict::kNote ? "note: " : "problem: ") + finding.what +
                    ": " + finding.found);
  }
  return lines;
}

TEST(DoctorTest, AReadyMachineHasNothingToComplainOf) {
  EXPECT_TRUE(Complaints(Fine()).empty());
  MachineFacts up = Fine();
  up.supervisor = 12;
  up.stale_files = true;  // its own
  EXPECT_TRUE(Complaints(up).empty());
}

TEST(DoctorTest, ProgramsHaveToBeThereAndOfOneVersion) {
  MachineFacts facts = Fine();
  facts.programs.push_back({"/bin/harmony-swapper", true, "1.2.2"});
  EXPECT_THAT(Complaints(facts),
              testing::ElementsAre(HasSubstr("problem: programs: harmony 1.2.3, but "
                                             "/bin/harmony-swapper is 1.2.2")));
  facts.programs.push_back({"/bin/harmony-coordinator"});
  EXPECT_THAT(Complaints(facts),
              testing::ElementsAre("problem: programs: /bin/harmony-coordinator cannot be run"));
}

TEST(DoctorTest, WhatMakesTrainingSlowIsNoted) {
  MachineFacts facts = Fine();
  facts.kernel_major = 5;
  facts.kernel_minor = 13;
  facts.core_quota = 1.5;
  facts.swap_used = GiB(1);
  facts.huge_pages = "never";
  facts.open_files = 256;
  facts.real_time_priority = 0;
  EXPECT_THAT(Complaints(facts),
              testing::ElementsAre(
                  "note: kernel: Linux 5.13",
                  "note: processor: 8 cores, AVX-512; the control group allows 1.5 of them",
                  "note: memory: 40.00 GiB of 64.00 GiB available, 1.00 GiB swapped out",
                  "note: huge pages: never", "note: limits: 256 open files",
                  "note: real-time priority: not allowed"));
  facts = Fine();
  facts.core_quota = 8;
  EXPECT_TRUE(Complaints(facts).empty());
}

TEST(DoctorTest, MemoryHasToBeLockableWhereThereAreGpus) {
  MachineFacts facts = Fine();
  facts.locked_memory = MiB(8);
  EXPECT_TRUE(Complaints(facts).empty());
  facts.gpus = {"NVIDIA H100"};
  facts.gpu_driver = "580.65.06";
  EXPECT_THAT(Complaints(facts), testing::ElementsAre("note: locked memory: 8.00 MiB"));
}

TEST(DoctorTest, DisksHaveToBeWritableAndToHaveRoom) {
  MachineFacts facts = Fine();
  facts.disks[0].free = GiB(1);
  EXPECT_THAT(Complaints(facts), testing::ElementsAre(HasSubstr("note: disk, job database")));
  facts.disks[0].free = MiB(1);
  EXPECT_THAT(Complaints(facts), testing::ElementsAre(HasSubstr("problem: disk, job database")));
  facts.disks[0] = {"sockets", "/run", GiB(100), /*writable=*/false};
  EXPECT_THAT(Complaints(facts),
              testing::ElementsAre("problem: disk, sockets: /run cannot be written"));
}

TEST(DoctorTest, WhatTheDeadLeftIsNamed) {
  MachineFacts facts = Fine();
  facts.stale_files = true;
  facts.dead_runs = {"/run/harmony-run.a", "/run/harmony-run.b"};
  EXPECT_THAT(Complaints(facts),
              testing::ElementsAre(HasSubstr("note: processes: none, but files"),
                                   HasSubstr("/run/harmony-run.a, /run/harmony-run.b")));
}

}  // namespace
}  // namespace harmony::client
