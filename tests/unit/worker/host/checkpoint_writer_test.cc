// Checkpoints and the final model, as the host executor writes and reads them.

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "common/base/clock.h"
#include "common/io/checkpoint_details.h"
#include "common/io/checkpoint_manifest.h"
#include "tests/unit/worker/host/host_fixture.h"

namespace harmony::worker {
namespace {

TEST_F(HostExecutorTest, AResumedRunGoesOnBitIdentically) {
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  for (int64_t step = 0; step < 2; ++step) RunStep(step);
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, 1).ok());
  for (int64_t step = 2; step < 4; ++step) RunStep(step);
  const Floats undisturbed = Persistent();

  job_.resume_checkpoint = dir_.File("out/checkpoint-2");
  job_.first_step = 2;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 2).ok());
  EXPECT_EQ(Record({command::ObjectKind::kParameter, 0, 0}).version, 2u);
  for (int64_t step = 2; step < 4; ++step) RunStep(step);
  EXPECT_EQ(Persistent(), undisturbed);

  const auto manifest = io::VerifyCheckpoint(job_.resume_checkpoint);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step, 2);
  EXPECT_EQ(manifest->resolved.micro_batch_size, 2);
  const auto details = io::CheckpointDetailsFromJson(manifest->details_json, "manifest");
  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(details->data_position, 12);
  EXPECT_EQ(details->source_directory, dir_.File("model"));
  EXPECT_EQ(details->job_json, job_.job_json);

  job_.plan.microbatch_size = 3;
  job_.plan.num_microbatches = 2;
  EXPECT_EQ(HostExecutor::Create(*segment_, job_).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "another microbatch size would give another result";
}

// The pruning of old checkpoints takes that one too; a host worker that is killed afterwards must
// come back all the same.
TEST_F(HostExecutorTest, TheCheckpointOfTheStartMayBePruned) {
  job_.spec.save_total_limit = 1;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  RunStep(0);
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, 0).ok());
  job_.resume_checkpoint = dir_.File("out/checkpoint-1");
  job_.first_step = 1;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 1).ok());
  RunStep(1);
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, 1).ok());
  ASSERT_FALSE(std::filesystem::exists(job_.resume_checkpoint));
  Attach();
  RunStep(2);
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, 2).ok());
  EXPECT_TRUE(io::VerifyCheckpoint(dir_.File("out/checkpoint-3")).ok());
}

// Each long task, stopped and done again.
TEST_F(HostExecutorTest, CancelledTasksLeaveNothingAndCanBeRepeated) {
  std::atomic<bool> cancelled{true};
  job_.cancelled = &cancelled;
  const auto stopped = [&](command::HostTaskKind kind, int64_t step) {
    cancelled = true;
    EXPECT_EQ(Run(kind, step).code(), absl::StatusCode::kAborted);
    cancelled = false;
    ASSERT_TRUE(Run(kind, step).ok());
  };
  Start();
  stopped(command::HostTaskKind::kInitialize, 0);
  RunStep(0);
  stopped(command::HostTaskKind::kCheckpoint, 0);
  for (const auto& entry : std::filesystem::directory_iterator(dir_.File("out"))) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("partial")));
  }
  stopped(command::HostTaskKind::kCheckpoint, 0);  // it is there: only verified
  job_.resume_checkpoint = dir_.File("out/checkpoint-1");
  job_.first_step = 1;
  cancelled = true;
  Start();
  stopped(command::HostTaskKind::kInitialize, 1);
  EXPECT_EQ(Record({command::ObjectKind::kParameter, 0, 0}).version, 1u);
}

TEST_F(HostExecutorTest, ADamagedCheckpointIsRefused) {
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  RunStep(0);
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, 0).ok());
  const std::string path = dir_.File("out/checkpoint-1/optimizer.safetensors");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5, std::ios::end);
  file.put(77);
  file.close();
  job_.resume_checkpoint = dir_.File("out/checkpoint-1");
  job_.first_step = 1;
  Start();
  const absl::Status status = Run(command::HostTaskKind::kInitialize, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("optimizer.safetensors"));
  EXPECT_EQ(Record({command::ObjectKind::kParameter, 0, 0}).state, command::ObjectState::kFree);
}

TEST_F(HostExecutorTest, OldCheckpointsAndLeftOversAreRemoved) {
  job_.spec.save_total_limit = 2;
  std::filesystem::create_directories(dir_.File("out/checkpoint-9.partial-1-0"));
  std::filesystem::create_directories(dir_.File("out/checkpoint-99"));  // of no use: no manifest
  Start();
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out/checkpoint-9.partial-1-0")));
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  for (int64_t step = 0; step < 3; ++step) {
    RunStep(step);
    ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, step).ok());
    ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, step).ok()) << "again, after a kill";
    EXPECT_TRUE(io::VerifyCheckpoint(dir_.File(absl::StrCat("out/checkpoint-", step + 1))).ok());
  }
  EXPECT_LE(io::ListCheckpoints(dir_.File("out")).size(), 3u);
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out/checkpoint-1")));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out/final"))) << "not finished";
}

// Host workers are killed at random moments of initialisation and of a checkpoint; the next one
// repeats the task. The older checkpoint stays valid all the time.
TEST_F(HostExecutorTest, KilledHostWorkersRepeatTheirTask) {
  Start();
  CounterRandom random(3);
  const auto run_and_kill = [&](command::HostTaskKind kind, int64_t step) {
    executor_.reset();  // its threads, which a child would not have
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Attach();
      _exit(Run(kind, step).ok() ? 0 : 1);
    }
    const Nanos moment =
        MonotonicClock().Now() + Nanos(static_cast<int64_t>(random.Below(20'000'000)));
    int status = 0;
    while (MonotonicClock().Now() < moment) {
      if (waitpid(child, &status, WNOHANG) == child) {
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return;
      }
      sched_yield();
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  };
  for (int i = 0; i < 10; ++i) run_and_kill(command::HostTaskKind::kInitialize, 0);
  Attach();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  const Floats killed = Persistent();
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  EXPECT_EQ(Persistent(), killed);

  RunStep(0);
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, 0).ok());
  RunStep(1);
  for (int i = 0; i < 20; ++i) {
    run_and_kill(command::HostTaskKind::kCheckpoint, 1);
    EXPECT_TRUE(io::VerifyCheckpoint(dir_.File("out/checkpoint-1")).ok());
    const std::string newest = dir_.File("out/checkpoint-2");
    EXPECT_TRUE(!std::filesystem::exists(newest) || io::VerifyCheckpoint(newest).ok());
  }
  Attach();
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, 1).ok());
  EXPECT_TRUE(io::VerifyCheckpoint(dir_.File("out/checkpoint-2")).ok());
  for (const auto& entry : std::filesystem::directory_iterator(dir_.File("out"))) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("partial")));
  }
}

TEST_F(HostExecutorTest, ACheckpointNeedsCommittedParameters) {
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  EXPECT_EQ(Run(command::HostTaskKind::kCheckpoint, 0).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out/checkpoint-1")));
}

TEST_F(HostExecutorTest, TheFinalModelCanBeTrainedFurther) {
  job_.spec.max_steps = 1;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  RunStep(0);
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, 0).ok());
  EXPECT_EQ(dir_.Read("out/final/config.json"), kConfig);
  EXPECT_EQ(dir_.Read("out/final/tokenizer.json"), "{\"a\": 1}");
  const Bytes parameters = command::PersistentBytes(job_.model, 0);
  Floats trained = Persistent();
  trained.resize(static_cast<size_t>(parameters.count() / 4));

  job_.spec.model_name_or_path = dir_.File("out/final");
  job_.spec.init = job::InitMode::kPretrained;
  job_.spec.output_dir = dir_.File("out2");
  job_.spec.max_steps = 0;
  Start();
  ASSERT_TRUE(Run(command::HostTaskKind::kInitialize, 0).ok());
  Floats loaded = Persistent();
  loaded.resize(trained.size());
  EXPECT_EQ(loaded, trained);
  // Nothing trained: what comes out is what went in.
  ASSERT_TRUE(Run(command::HostTaskKind::kCheckpoint, -1).ok());
  EXPECT_EQ(dir_.Read("out2/final/model.safetensors"), dir_.Read("out/final/model.safetensors"));
}

}  // namespace
}  // namespace harmony::worker
