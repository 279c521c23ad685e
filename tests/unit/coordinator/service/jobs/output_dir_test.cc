#include "coordinator/service/jobs/output_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/io/checkpoint_details.h"
#include "common/io/checkpoint_manifest.h"
#include "common/ipc/fd_passing.h"
#include "common/job/job_file.h"

namespace harmony::service {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr char kKeys[] = "learning_rate: 0.1\nseed: 1\n";
constexpr char kOtherKeys[] = "learning_rate: 0.5\nseed: 1\n";
const job::ResolvedKeys kResolved = {2, 4, DType::kBF16};

class OutputDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "outXXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    out_ = folder_ + "/a/out";
    job_.output_dir = out_;
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Prepare(const std::string& keys, bool overwrite = false) {
    const auto state = InspectOutputDir(job_, keys, overwrite);
    ASSERT_TRUE(state.ok()) << state.status();
    const auto lock = PrepareOutputDir(out_, *state, {keys, kResolved, false, {}}, &moved_to_);
    ASSERT_TRUE(lock.ok()) << lock.status();
  }
  // Of a job whose data have that hash.
  absl::StatusOr<std::string> Origin(uint64_t hash = 1) const {
    return OriginOf(job_, [hash](const io::DataFingerprint& begun_with, int64_t /*steps*/) {
      return begun_with.hash == hash;
    });
  }
  void MakeCheckpoint(int64_t step, const std::string& keys, uint64_t hash = 0) {
    const std::string path = absl::StrCat(out_, "/", io::CheckpointName(step));
    fs::create_directories(path);
    std::ofstream(path + "/data") << "content";
    io::CheckpointManifest manifest;
    manifest.step = step;
    manifest.result_keys = keys;
    manifest.resolved = kResolved;
    if (hash > 0) {
      io::CheckpointDetails details;
      details.data = io::DataFingerprint{9, 9, hash};
      manifest.details_json = io::ToJson(details);
    }
    ASSERT_TRUE(io::WriteManifest(path, manifest).ok());
  }
  // As a version wrote it that added replicas up one after the other.
  void MakeOld(const std::string& path) {
    std::ifstream file(path);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    ASSERT_EQ(absl::StrReplaceAll({{"\"sum_order\": \"pairwise\",", ""}}, &text), 1);
    std::ofstream(path) << text;
  }
  std::string folder_, out_, moved_to_;
  job::JobSpec job_;
};

TEST_F(OutputDirTest, InspectingMakesNothing) {
  const auto state = InspectOutputDir(job_, kKeys, false);
  ASSERT_TRUE(state.ok());
  EXPECT_FALSE(state->same_run);
  EXPECT_FALSE(fs::exists(folder_ + "/a"));
}

TEST_F(OutputDirTest, TheSameRunContinuesWithItsMicrobatch) {
  Prepare(kKeys);
  auto state = InspectOutputDir(job_, kKeys, false);
  ASSERT_TRUE(state.ok());
  EXPECT_TRUE(state->same_run);
  EXPECT_FALSE(state->finished);
  EXPECT_EQ(state->resolved->micro_batch_size, 2);
  EXPECT_EQ(state->resolved->virtual_replicas, 4);
  EXPECT_EQ(state->resolved->gradient_dtype, DType::kBF16);
  ASSERT_TRUE(io::WriteRunFile(out_, {kKeys, kResolved, true, {}}).ok());
  EXPECT_FALSE(InspectOutputDir(job_, kKeys, false)->finished) << "without final/ it is not";
  fs::create_directory(out_ + "/final");
  EXPECT_TRUE(InspectOutputDir(job_, kKeys, false)->finished);
}

TEST_F(OutputDirTest, AFinishedRunGoesOnWithMoreStepsAndSaysSo) {
  job_.max_steps = 10;
  const std::string keys = job::ResultKeysText(job_);
  fs::create_directories(out_ + "/final");
  ASSERT_TRUE(
      io::WriteRunFile(out_, {keys, kResolved, true, {}, {{5, {"a (1 -> 2)"}}}, 2, 1}).ok());
  MakeCheckpoint(10, keys);
  job_.max_steps = 20;
  job_.save_steps = 4;
  const std::string more = job::ResultKeysText(job_);
  const auto state = InspectOutputDir(job_, more, false);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(state->same_run && state->extended && !state->finished && !state->must_move);
  const std::vector<io::RunExtension> extensions = {
      {5, {"a (1 -> 2)"}}, {10, {"max_steps (10 -> 20)", "save_steps (2 -> 4)"}}};
  EXPECT_EQ(state->extensions, extensions);
  const std::vector<io::RunHardware> hardware = {{0, {"a processor"}}, {7, {"a GPU", "another"}}};
  ASSERT_TRUE(io::WriteRunFile(out_, {more, kResolved, true, {}, extensions, 4, 1, hardware}).ok());
  EXPECT_EQ(io::ReadRunFile(out_)->computed_on, hardware);
  EXPECT_EQ(io::ReadRunFile(out_)->extensions, extensions);
  EXPECT_EQ(ChooseStartPoint(job_, more)->first_step, 10);
  EXPECT_TRUE(InspectOutputDir(job_, more, false)->finished);
  job_.resume_from_checkpoint = out_ + "/checkpoint-10";
  EXPECT_TRUE(InspectOutputDir(job_, more, false)->finished);
  job_.max_steps = 30;
  EXPECT_THAT(
      std::string(InspectOutputDir(job_, job::ResultKeysText(job_), false).status().message()),
      HasSubstr("its own newest checkpoint"));
  job_.resume_from_checkpoint = "auto";
  job_.max_steps = 9;
  EXPECT_THAT(
      std::string(InspectOutputDir(job_, job::ResultKeysText(job_), false).status().message()),
      HasSubstr("10 steps are done"));
}

TEST_F(OutputDirTest, AFolderThatAnotherWritesToIsNeitherMovedNorTaken) {
  OutputDirState state;
  auto first = PrepareOutputDir(out_, state, {kKeys, kResolved, false, {}}, &moved_to_);
  ASSERT_TRUE(first.ok()) << first.status();
  state.must_move = true;
  const auto second = PrepareOutputDir(out_, state, {kOtherKeys, kResolved, false, {}}, &moved_to_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another coordinator"));
  EXPECT_EQ(io::ReadRunFile(out_)->result_keys, kKeys);
  EXPECT_FALSE(fs::exists(out_ + ".old-1"));
  first = absl::CancelledError();  // it ends
  EXPECT_TRUE(PrepareOutputDir(out_, state, {kOtherKeys, kResolved, false, {}}, &moved_to_).ok());
  EXPECT_EQ(moved_to_, out_ + ".old-1");
}

TEST_F(OutputDirTest, WhatTheJobReadsIsNotMovedAside) {
  fs::create_directories(out_ + "/final");
  std::ofstream(folder_ + "/data.txt") << "text";
  std::ofstream(out_ + "/data.txt") << "text";
  job::JobSpec job;
  job.output_dir = out_;
  job.data_path = folder_ + "/data.txt";
  job.model_name_or_path = "gpt2-mini";
  job.resume_from_checkpoint = "auto";
  EXPECT_TRUE(CheckMayMove(job).ok());
  job.model_name_or_path = folder_ + "/a/../a/out/final";
  EXPECT_THAT(std::string(CheckMayMove(job).message()), HasSubstr("model_name_or_path"));
  job.model_name_or_path = "gpt2-mini";
  job.data_path = out_ + "/data.txt";
  EXPECT_THAT(std::string(CheckMayMove(job).message()), HasSubstr("data.path"));
}

TEST_F(OutputDirTest, StepsThatAreComputedAgainBelongToWhoComputesThemLast) {
  using Devices = std::vector<std::string>;
  const Devices a = {"a processor"}, b = {"a GPU"};
  std::vector<io::RunHardware> computed_on;
  EXPECT_EQ(io::SetHardware(0, a, computed_on), Devices());
  EXPECT_EQ(io::SetHardware(20, a, computed_on), Devices());
  EXPECT_EQ(io::SetHardware(50, b, computed_on), a);
  EXPECT_EQ(computed_on, (std::vector<io::RunHardware>{{0, a}, {50, b}}));
  // From a checkpoint before that: on either.
  std::vector<io::RunHardware> again = computed_on;
  EXPECT_EQ(io::SetHardware(20, b, again), a);
  EXPECT_EQ(again, (std::vector<io::RunHardware>{{0, a}, {20, b}}));
  EXPECT_EQ(io::SetHardware(50, a, computed_on), Devices());
  EXPECT_EQ(computed_on, (std::vector<io::RunHardware>{{0, a}}));
  EXPECT_EQ(io::SetHardware(0, b, computed_on), Devices()) << "nothing of the other is left";
  EXPECT_EQ(computed_on, (std::vector<io::RunHardware>{{0, b}}));
}

TEST_F(OutputDirTest, TheRunFileFixesTheData) {
  const io::DataFingerprint data{1000, 1000, 0xabcdef0123456789};
  fs::create_directories(out_);
  ASSERT_TRUE(io::WriteRunFile(out_, {kKeys, kResolved, false, data}).ok());
  const auto run = io::ReadRunFile(out_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->data, data);
  EXPECT_TRUE(io::CheckDataUnchanged(run->data, "t.bin", data).ok());
  const absl::Status longer = io::CheckDataUnchanged(run->data, "t.bin", {1001, 1001, 5});
  EXPECT_EQ(longer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(longer.message()), HasSubstr("had 1000 bytes and has 1001"));
  EXPECT_THAT(std::string(io::CheckDataUnchanged(run->data, "t.bin", {1000, 1000, 5}).message()),
              HasSubstr("its content is another"));
  // Runs of versions that did not write it go on.
  EXPECT_TRUE(io::CheckDataUnchanged(std::nullopt, "t.bin", data).ok());
}

TEST_F(OutputDirTest, ARunThatTrainedNothingLeavesTheFolderToAnother) {
  Prepare(kKeys);
  std::ofstream(out_ + "/metrics.jsonl");  // no line yet
  EXPECT_TRUE(RetakeOutputDir(out_, kKeys).ok());
  Prepare(kOtherKeys);
  EXPECT_EQ(moved_to_, "");
  EXPECT_EQ(io::ReadRunFile(out_)->result_keys, kOtherKeys);
  const auto late = RetakeOutputDir(out_, kKeys);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("learning_rate (0.5 -> 0.1)"));
}

TEST_F(OutputDirTest, AnotherRunIsRefusedByKeyOrMovedAside) {
  Prepare(kKeys);
  std::ofstream(out_ + "/metrics.jsonl") << "{}";
  const auto refused = InspectOutputDir(job_, kOtherKeys, false);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("learning_rate (0.1 -> 0.5)"));
  Prepare(kOtherKeys, /*overwrite=*/true);
  EXPECT_EQ(moved_to_, out_ + ".old-1");
  EXPECT_EQ(io::ReadRunFile(moved_to_)->result_keys, kKeys);
  EXPECT_EQ(io::ReadRunFile(out_)->result_keys, kOtherKeys);
}

TEST_F(OutputDirTest, ResultsWithoutADescriptionAreNotOverwritten) {
  fs::create_directories(out_);
  EXPECT_TRUE(InspectOutputDir(job_, kKeys, false).ok()) << "an empty folder is fine";
  std::ofstream(out_ + "/metrics.jsonl") << "{}";
  EXPECT_EQ(InspectOutputDir(job_, kKeys, false).status().code(),
            absl::StatusCode::kFailedPrecondition);
  fs::remove(out_ + "/metrics.jsonl");
  std::ofstream(out_ + "/run.json") << "torn";
  EXPECT_THAT(std::string(InspectOutputDir(job_, kKeys, false).status().message()),
              HasSubstr("run.json"));
}

// It would go on with other bits: it is refused, not passed over, and nothing is lost.
TEST_F(OutputDirTest, ARunThatAddedUpInAnotherOrderIsNamedAndKept) {
  Prepare(kKeys);
  MakeCheckpoint(4, kKeys);
  MakeOld(out_ + "/checkpoint-4/manifest.json");
  for (const char* from : {"auto", "checkpoint-4"}) {
    job_.resume_from_checkpoint =
        from == std::string("auto") ? from : absl::StrCat(out_, "/", from);
    const absl::Status status = ChooseStartPoint(job_, kKeys).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint-4: the gradients of "
                                                         "virtual_replicas: 4 were added up one"));
  }
  job_.resume_from_checkpoint = "auto";
  MakeOld(out_ + "/run.json");
  const absl::Status status = InspectOutputDir(job_, kKeys, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("begin a new run from its weights"));
  EXPECT_TRUE(InspectOutputDir(job_, kKeys, true)->must_move);
  absl::StatusOr<io::RunFile> run = io::ReadRunFile(out_);
  ASSERT_TRUE(run.ok()) << "it can be read, as for its end or an export";
  EXPECT_EQ(run->resolved.sum_order, job::SumOrder::kInTurn);
  run->finished = true;
  ASSERT_TRUE(io::WriteRunFile(out_, *run).ok());
  EXPECT_EQ(io::ReadRunFile(out_)->resolved, run->resolved);
  fs::create_directory(out_ + "/final");
  EXPECT_TRUE(InspectOutputDir(job_, kKeys, false)->finished);
}

TEST_F(OutputDirTest, StartsAtTheNewestCheckpointThatIsWholeAndItsOwn) {
  Prepare(kKeys);
  job::JobSpec job;
  job.output_dir = out_;
  EXPECT_EQ(ChooseStartPoint(job, kKeys)->checkpoint, "");
  MakeCheckpoint(4, kKeys);
  MakeCheckpoint(6, kKeys);
  MakeCheckpoint(8, kOtherKeys);
  EXPECT_EQ(ChooseStartPoint(job, kKeys)->first_step, 6);
  std::ofstream(out_ + "/checkpoint-6/data") << "Content";
  const auto start = ChooseStartPoint(job, kKeys);
  EXPECT_EQ(start->first_step, 4);
  EXPECT_EQ(start->checkpoint, out_ + "/checkpoint-4");
  EXPECT_EQ(start->notes.size(), 2u);
  job.resume_from_checkpoint = out_ + "/checkpoint-6";
  EXPECT_EQ(ChooseStartPoint(job, kKeys).status().code(), absl::StatusCode::kDataLoss);
  job.resume_from_checkpoint = "none";
  EXPECT_EQ(ChooseStartPoint(job, kKeys)->first_step, 0);
}

// What was trained after the checkpoint that a job names is not taken for what it trains.
TEST_F(OutputDirTest, LaterCheckpointsAreSetAsideWhereARunGoesBack) {
  Prepare(kKeys);
  for (int64_t step : {2, 4, 6}) MakeCheckpoint(step, kKeys);
  job_.resume_from_checkpoint = out_ + "/checkpoint-4";
  StartPoint start = *ChooseStartPoint(job_, kKeys);
  ASSERT_TRUE(SetLaterCheckpointsAside(out_, &start).ok());
  EXPECT_EQ(io::ListCheckpoints(out_), (std::vector<int64_t>{4, 2}));
  EXPECT_TRUE(fs::exists(out_ + "/checkpoint-6.old-1/manifest.json"));
  EXPECT_THAT(start.notes,
              testing::ElementsAre(HasSubstr("is now " + out_ + "/checkpoint-6.old-1")));
  // Killed and taken up by a service, it goes on from what it has come to, and no farther.
  EXPECT_EQ(ChooseStartPoint(job_, kKeys, /*begun=*/true)->first_step, 4);
  MakeCheckpoint(6, kKeys);
  EXPECT_EQ(ChooseStartPoint(job_, kKeys, /*begun=*/true)->first_step, 6);
  start = *ChooseStartPoint(job_, kKeys);
  ASSERT_TRUE(SetLaterCheckpointsAside(out_, &start).ok());
  EXPECT_TRUE(fs::exists(out_ + "/checkpoint-6.old-2/manifest.json"));
  job_.resume_from_checkpoint = "auto";
  MakeCheckpoint(8, kOtherKeys);
  start = *ChooseStartPoint(job_, kKeys);
  ASSERT_TRUE(SetLaterCheckpointsAside(out_, &start).ok());
  EXPECT_TRUE(fs::exists(out_ + "/checkpoint-8"));
}

// What a run began with is part of what it is: two that began elsewhere share no folder.
TEST_F(OutputDirTest, ARunKnowsTheCheckpointThatItBeganWith) {
  const std::string here = out_, elsewhere = folder_ + "/elsewhere";
  out_ = elsewhere;
  MakeCheckpoint(4, kOtherKeys);
  job_.seed = 5;
  MakeCheckpoint(5, job::ResultKeysText(job_));  // of a run like this one
  out_ = here;
  EXPECT_EQ(*Origin(), "") << "auto, and nothing is there";
  job_.resume_from_checkpoint = elsewhere + "/checkpoint-5";
  EXPECT_EQ(*Origin(), "") << "this run comes there by itself";
  job_.resume_from_checkpoint = elsewhere + "/checkpoint-4";
  job_.begun_from = *Origin();
  EXPECT_THAT(job_.begun_from, testing::StartsWith("step 4, checksum "));
  const std::string keys = job::ResultKeysText(job_);
  Prepare(keys);
  // Killed before it has a checkpoint: it begins where it began.
  EXPECT_EQ(ChooseStartPoint(job_, keys, /*begun=*/true)->first_step, 4);
  MakeCheckpoint(3, keys);  // before that
  EXPECT_EQ(ChooseStartPoint(job_, keys)->checkpoint, elsewhere + "/checkpoint-4");
  MakeCheckpoint(6, keys);
  EXPECT_EQ(ChooseStartPoint(job_, keys)->checkpoint, out_ + "/checkpoint-6");
  job_.resume_from_checkpoint = "auto";
  std::ofstream(out_ + "/checkpoint-6/data") << "Content";
  std::ofstream(out_ + "/checkpoint-3/data") << "Content";
  EXPECT_THAT(std::string(ChooseStartPoint(job_, keys).status().message()),
              HasSubstr("with another run's checkpoint (step 4, checksum "))
      << "not with init";
  std::ofstream(out_ + "/checkpoint-6/data") << "content";
  std::ofstream(out_ + "/checkpoint-3/data") << "content";
  job_.resume_from_checkpoint = elsewhere + "/checkpoint-4";
  EXPECT_TRUE(ChooseStartPoint(job_, keys)->notes.empty());
  // One of its own, by name, is meant.
  job_.resume_from_checkpoint = out_ + "/checkpoint-3";
  EXPECT_EQ(*Origin(), job_.begun_from);
  EXPECT_EQ(ChooseStartPoint(job_, keys)->first_step, 3);
  EXPECT_EQ(ChooseStartPoint(job_, keys, /*begun=*/true)->first_step, 6);
  EXPECT_FALSE(ChooseStartPoint(job_, keys, /*begun=*/true)->goes_back);
  for (const char* word : {"auto", "none"}) {
    job_.resume_from_checkpoint = word;
    EXPECT_EQ(*Origin(), job_.begun_from) << word;
  }
  // Its checkpoints are gone: said before run.json says that it goes on.
  for (const int step : {3, 6}) fs::remove_all(absl::StrCat(out_, "/checkpoint-", step));
  job_.resume_from_checkpoint = "auto";
  EXPECT_THAT(std::string(InspectOutputDir(job_, keys, false).status().message()),
              HasSubstr("with another run's checkpoint (step 4, checksum "));
  // Another origin is another run.
  std::ofstream(out_ + "/metrics.jsonl") << "{}";
  job::JobSpec scratch = job_;
  scratch.begun_from.clear();
  const auto refused = InspectOutputDir(scratch, job::ResultKeysText(scratch), false);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("resume_from_checkpoint (step 4, checksum "));
  job_.resume_from_checkpoint = folder_;
  EXPECT_THAT(std::string(Origin().status().message()),
              HasSubstr("resume_from_checkpoint: " + folder_ + ": is no checkpoint"));
}

// While one job is planned another may come, train and end.
TEST_F(OutputDirTest, WhatHasComeSinceItWasInspectedIsNotWrittenOver) {
  const auto before = InspectOutputDir(job_, kKeys, false);
  ASSERT_TRUE(before.ok()) << before.status();
  Prepare(kOtherKeys);
  const auto refused =
      PrepareOutputDir(out_, *before, {kKeys, kResolved, false, {}}, &moved_to_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_EQ(io::ReadRunFile(out_)->result_keys, kOtherKeys);
}

// A file that does not answer now is not damaged.
TEST_F(OutputDirTest, WaitsForACheckpointThatCannotBeReadNow) {
  Prepare(kKeys);
  MakeCheckpoint(3, kKeys);
  MakeCheckpoint(5, kKeys);
  fs::remove(out_ + "/checkpoint-5/data");
  const std::string path = out_ + "/checkpoint-5/data";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const ipc::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const auto start = ChooseStartPoint(job_, kKeys);
  EXPECT_EQ(start.status().code(), absl::StatusCode::kUnavailable) << start.status();
}

TEST_F(OutputDirTest, ACheckpointOfOtherDataIsOfAnotherRun) {
  const std::string here = out_;
  out_ = folder_ + "/elsewhere";
  MakeCheckpoint(4, job::ResultKeysText(job_), /*hash=*/7);
  job_.resume_from_checkpoint = out_ + "/checkpoint-4";
  out_ = here;
  EXPECT_EQ(*Origin(7), "");
  EXPECT_THAT(*Origin(8), testing::StartsWith("step 4, checksum "));
  Prepare(job::ResultKeysText(job_));
  EXPECT_EQ(*Origin(8), "") << "run.json says what its data are";
}

}  // namespace
}  // namespace harmony::service
