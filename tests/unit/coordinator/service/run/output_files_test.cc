#include "coordinator/service/run/output_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/io/run_file.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/io/temp_dir.h"
#include "tests/unit/coordinator/service/fake_member.h"
#include "tests/unit/coordinator/service/small_setup.h"

namespace harmony::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Of a run that has no processes. Without its folder, nothing can be written.
class OutputFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store::JobRecord record;
    record.output_dir = out_;
    record.result_keys = "the keys";
    record_ = *registry_.Add(record);
    RunSetup setup = SmallSetup();
    setup.spec.output_dir = out_;
    run_ = std::make_unique<JobRun>(std::move(setup), SmallMachine(), &segment_, &members_, &clock_,
                                    RunEvents());
    BeginRun(0);
  }
  void BeginRun(int64_t first_step) {
    files_ = std::make_unique<OutputFiles>(run_.get(), &registry_, &members_, &clock_, first_step,
                                           clock_.now);
  }
  bool Exists(const std::string& name) const { return std::filesystem::exists(out_ + "/" + name); }
  void MakeFolder() { std::filesystem::create_directory(out_); }
  // The one worker is there, on this hardware.
  void ComputeOn(const std::string& hardware) {
    ++session_;
    v1::Hello hello = HelloOf(v1::ROLE_WORKER, 0, worker_.pid());
    hello.set_computes_on(hardware);
    members_.OnHello(session_, std::make_shared<FakeLink>(), hello);
  }
  const std::vector<std::string>& said() { return registry_.Messages(*record_); }

  io::TempDir dir_;
  const std::string out_ = dir_.File("out");
  JobRegistry registry_ = *JobRegistry::Open(*store::JobStore::Open(dir_.path()));
  ipc::Segment segment_ = *ipc::Segment::Create(MiB(16));
  FakeClock clock_;
  Members members_{1, {[](const Member&) {}, [](const Member&) {}}};
  Child worker_;
  uint64_t session_ = 0;
  store::JobRecord* record_ = nullptr;
  std::unique_ptr<JobRun> run_;
  std::unique_ptr<OutputFiles> files_;
};

TEST_F(OutputFilesTest, APlanThatCannotBeWrittenFollowsWhenItCan) {
  EXPECT_FALSE(files_->WritePlan(*record_).ok());
  EXPECT_THAT(said(), ElementsAre(StartsWith("no plan.json yet: ")));
  clock_.now += Seconds(1);
  files_->OnTick(*record_, clock_.now);
  EXPECT_EQ(said().size(), 1u) << "it is not told of again";
  MakeFolder();
  clock_.now += Millis(1'900);
  files_->OnTick(*record_, clock_.now);
  EXPECT_FALSE(Exists("plan.json")) << "not due yet";
  clock_.now += Millis(100);
  files_->OnTick(*record_, clock_.now);
  EXPECT_TRUE(Exists("plan.json"));
}

TEST_F(OutputFilesTest, TheEndWritesWhatIsMissing) {
  EXPECT_FALSE(files_->WritePlan(*record_).ok());
  MakeFolder();
  clock_.now += Seconds(7);
  ASSERT_TRUE(files_->WriteEnd(*record_).ok());
  EXPECT_TRUE(Exists("plan.json"));
  EXPECT_TRUE(Exists("summary.json"));
  EXPECT_THAT(record_->summary_json, HasSubstr("\"seconds\": 7.0"));
  const absl::StatusOr<io::RunFile> run = io::ReadRunFile(out_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(run->finished);
  EXPECT_EQ(run->result_keys, "the keys");
}

TEST_F(OutputFilesTest, AnEndThatCannotBeWrittenIsPutOff) {
  EXPECT_TRUE(files_->EndIsDue(clock_.now));
  const absl::Status status = files_->WriteEnd(*record_);
  ASSERT_FALSE(status.ok());
  files_->PutEndOff(*record_, status, clock_.now);
  EXPECT_THAT(said(), ElementsAre(HasSubstr(": all else is written; the next try is in 1.00 s, or "
                                            "now with `resume`")));
  EXPECT_FALSE(files_->EndIsDue(clock_.now + Millis(900)));
  EXPECT_TRUE(files_->EndIsDue(clock_.now + Seconds(1)));
  files_->HurryEnd();
  EXPECT_TRUE(files_->EndIsDue(clock_.now));
}

TEST_F(OutputFilesTest, WhatStepsAreComputedOnIsNotedOnceARun) {
  MakeFolder();
  ASSERT_TRUE(io::WriteRunFile(out_, {"the keys", {}, false, {}}).ok());
  files_->OnStep(*record_);
  EXPECT_THAT(io::ReadRunFile(out_)->computed_on, IsEmpty()) << "no worker has said";
  ComputeOn("a processor");
  files_->OnStep(*record_);
  const std::vector<io::RunHardware> noted = {{0, {"a processor"}}};
  EXPECT_EQ(io::ReadRunFile(out_)->computed_on, noted);
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(OutputFilesTest, OtherHardwareThanBeforeIsTold) {
  MakeFolder();
  ASSERT_TRUE(
      io::WriteRunFile(out_, {"the keys", {}, false, {}, {}, {}, {}, {{0, {"another processor"}}}})
          .ok());
  ComputeOn("a processor");
  BeginRun(/*first_step=*/20);
  files_->OnStep(*record_);
  files_->OnStep(*record_);
  EXPECT_THAT(said(), ElementsAre("goes on after step 20 on a processor; before it ran on another "
                                  "processor: the last bits of its results may be others than they "
                                  "would have been there"));
}

}  // namespace
}  // namespace harmony::service
