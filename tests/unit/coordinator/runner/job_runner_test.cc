#include "coordinator/runner/job_runner.h"

#include <map>

#include "absl/strings/match.h"
#include "coordinator/runner/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/simulator/action_text.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::runner {
namespace {

using sim::DebugString;

using ::testing::HasSubstr;
using ::testing::Not;

constexpr ProcessId kSwapper{Role::kSwapper, 0}, kHost{Role::kHostWorker, 0},
    kWorker0{Role::kWorker, 0}, kWorker1{Role::kWorker, 1};

class JobRunnerTest : public ::testing::Test {
 protected:
  JobRunnerTest()
      : model_(dispatch::SmallModel()),
        plan_(dispatch::SmallPlan(model_, 2)),
        runner_(model_, plan_, costs_, Options()) {}

  static RunnerOptions Options() {
    RunnerOptions options;
    options.dispatch.end_step = 2;
    options.max_generations_without_progress = 2;
    return options;
  }

  std::string Tell(const Event& event, Nanos now = Nanos()) {
    return DebugString(runner_.OnEvent(event, now));
  }
  static void AttachAll(JobRunner& runner) {
    for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
      runner.OnEvent(ProcessAttached{process, 1}, Nanos());
    }
  }
  // To kRunning of the current generation.
  std::string StartRunning() {
    std::string last;
    for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
      last = Tell(ProcessAttached{process, 1});
    }
    EXPECT_THAT(last, HasSubstr("raise 1\n"));
    EXPECT_THAT(last, HasSubstr("read records 1\n"));
    EXPECT_THAT(last, Not(HasSubstr("ask")));  // nobody runs anything yet
    return Tell(RecordsRead{1, {}});
  }

  // An incarnation is lost and the next one attaches, to kRunning of `generation`: what is said
  // when it does.
  std::string Replace(const ProcessId& lost, uint32_t incarnation, uint32_t own_deaths,
                      uint32_t generation) {
    Tell(ProcessLost{lost, incarnation});
    for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
      if (process != lost) Tell(Quiesced{process, incarnations_[process], generation});
    }
    incarnations_[lost] = incarnation + 1;
    const std::string attached = Tell(ProcessAttached{lost, incarnation + 1, own_deaths});
    Tell(RecordsRead{generation, {}});
    return attached;
  }

  // The records of a segment in which nothing but the initialisation has been done, or `version`
  // updates.
  std::vector<command::ObjectView> Initialized(uint64_t version = 0) const {
    const command::ObjectTableLayout table(model_, plan_.num_microbatches, plan_.replicas);
    std::vector<command::ObjectView> records(static_cast<size_t>(table.size()));
    for (int i = 0; i < table.size(); ++i) {
      records[i].key = table.KeyOf(i);
      const command::ObjectKind kind = records[i].key.kind;
      if (kind == command::ObjectKind::kParameter || kind == command::ObjectKind::kMoment1 ||
          kind == command::ObjectKind::kMoment2) {
        records[i].state = command::ObjectState::kClean;
        records[i].version = version;
      }
    }
    return records;
  }

  model::ModelSpec model_;
  plan::Plan plan_;
  dispatch::UnitCosts costs_;
  JobRunner runner_;
  std::map<ProcessId, uint32_t> incarnations_ = {
      {kSwapper, 1}, {kHost, 1}, {kWorker0, 1}, {kWorker1, 1}};
};

TEST_F(JobRunnerTest, StartsWhenAllAreHere) {
  const std::string started = StartRunning();
  EXPECT_THAT(started, HasSubstr("start 1\nsend to swapper 1\n"));
  EXPECT_EQ(runner_.state(), JobRunner::State::kRunning);
}

TEST_F(JobRunnerTest, ALostProcessBeginsAGeneration) {
  StartRunning();
  const std::string lost = Tell(ProcessLost{kWorker1, 1});
  EXPECT_THAT(lost, HasSubstr("raise 2\n"));
  EXPECT_THAT(lost, HasSubstr("ask swapper to quiesce for 2\n"));
  EXPECT_THAT(lost, Not(HasSubstr("ask worker 1")));
  Tell(Quiesced{kSwapper, 1, 2});
  Tell(Quiesced{kHost, 1, 2});
  EXPECT_EQ(Tell(Quiesced{kWorker0, 1, 1}), "");  // of another generation
  EXPECT_EQ(Tell(Quiesced{kWorker0, 1, 2}), "");
  EXPECT_EQ(runner_.state(), JobRunner::State::kQuiescing);
  EXPECT_EQ(Tell(ProcessAttached{kWorker1, 2}), "read records 2\n");
  EXPECT_THAT(Tell(RecordsRead{2, {}}), HasSubstr("start 2\n"));
}

TEST_F(JobRunnerTest, IgnoresWhatIsLate) {
  StartRunning();
  Tell(ProcessLost{kWorker1, 1});
  EXPECT_EQ(Tell(LaneProgress{1, 0, 1}), "");
  EXPECT_EQ(Tell(CommandFailed{1, 0, 1, absl::InternalError("old")}), "");
  EXPECT_EQ(Tell(ProcessLost{kWorker1, 1}), "");
  EXPECT_EQ(Tell(RecordsRead{1, {}}), "");
  EXPECT_EQ(runner_.state(), JobRunner::State::kQuiescing);
}

TEST_F(JobRunnerTest, ADeathDuringQuiesceBeginsAnother) {
  StartRunning();
  Tell(ProcessLost{kWorker1, 1});
  const std::string again = Tell(ProcessLost{kHost, 1});
  EXPECT_THAT(again, HasSubstr("raise 3\n"));
  EXPECT_THAT(again, HasSubstr("ask swapper to quiesce for 3\n"));
}

TEST_F(JobRunnerTest, KillsWhoDoesNotQuiesce) {
  StartRunning();
  Tell(ProcessLost{kWorker1, 1}, Seconds(10));
  Tell(Quiesced{kSwapper, 1, 2}, Seconds(10));
  EXPECT_EQ(Tell(Tick{}, Seconds(39)), "");
  const std::string killed = Tell(Tick{}, Seconds(41));
  EXPECT_THAT(killed, HasSubstr("kill host worker: did not quiesce in time"));
  EXPECT_THAT(killed, HasSubstr("kill worker 0"));
  EXPECT_THAT(killed, Not(HasSubstr("kill swapper")));
  EXPECT_EQ(Tell(Tick{}, Seconds(42)), "");  // once
}

TEST_F(JobRunnerTest, NamesTheCommandThatPassesItsDeadline) {
  StartRunning();
  EXPECT_EQ(Tell(Tick{}, Seconds(1)), "");  // the initialisation is the only one that can run
  EXPECT_EQ(Tell(Tick{}, Seconds(100)), "");
  const std::string killed = Tell(Tick{}, Seconds(122));
  EXPECT_THAT(killed, HasSubstr("kill host worker: deadline passed on host_io (semaphore 11, "
                                "value 1): #1 step 0 lane 11=1 initialize"));
}

TEST_F(JobRunnerTest, NamesTheTensorOfATransferThatPassesItsDeadline) {
  StartRunning();
  Tell(LaneProgress{1, 11, 1}, Seconds(1));  // the initialisation is done
  Tell(Tick{}, Seconds(2));
  const std::string killed = Tell(Tick{}, Seconds(300));
  EXPECT_THAT(killed, HasSubstr("kill swapper: deadline passed on h2d_bulk0 (semaphore 1, "));
  EXPECT_THAT(killed, HasSubstr(" reads parameter(0)"));
}

TEST_F(JobRunnerTest, AFailedCommandEndsTheJob) {
  StartRunning();
  EXPECT_THAT(Tell(CommandFailed{1, 0, 1, absl::FailedPreconditionError("step 1: not finite")}),
              HasSubstr("ended FAILED_PRECONDITION: step 1: not finite"));
  EXPECT_EQ(runner_.state(), JobRunner::State::kFailed);
}

// It would fail again; but what was trained before it is not lost. (The same again while that is
// saved: a step that has updated something cannot be left.)
TEST_F(JobRunnerTest, AFailedCommandEndsTheJobWhenWhatWasTrainedIsSaved) {
  const absl::Status failure = absl::InternalError("step 2: not finite");
  for (const bool again : {false, true}) {
    JobRunner runner(model_, plan_, costs_, Options());
    AttachAll(runner);
    const auto tell = [&](const Event& event) {
      return DebugString(runner.OnEvent(event, Nanos()));
    };
    tell(RecordsRead{1, Initialized(/*version=*/1)});
    EXPECT_THAT(tell(CommandFailed{1, 0, 1, failure}),
                HasSubstr("not finite: the job ends; what it has trained is saved before"));
    for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
      tell(Quiesced{process, 1, 2});
    }
    const std::string saving = tell(RecordsRead{2, Initialized(/*version=*/1)});
    EXPECT_THAT(saving, HasSubstr("checkpoint"));
    EXPECT_THAT(saving, Not(HasSubstr("load_batch")));
    const int lane = command::LaneTable(2).IndexOf({command::LaneKind::kHostIo, 0});
    const std::string ended = again ? tell(CommandFailed{2, 0, 1, absl::InternalError("more")})
                                    : tell(LaneProgress{2, lane, 1});
    EXPECT_THAT(ended, HasSubstr("ended INTERNAL: step 2: not finite\n"));
    EXPECT_EQ(absl::StrContains(ended, "could not be saved"), again);
  }
}

// What is saved may have gone wrong already, and must not take the place of what has not.
TEST_F(JobRunnerTest, AFailedCommandEndsTheJobAtOnceWhereThatWouldCostAnotherCheckpoint) {
  RunnerOptions options = Options();
  options.keeps_checkpoints = false;
  options.dispatch.save_steps = 1;
  JobRunner runner(model_, plan_, costs_, options);
  AttachAll(runner);
  runner.OnEvent(RecordsRead{1, Initialized(/*version=*/1)}, Nanos());
  const Event failed = CommandFailed{1, 0, 1, absl::InternalError("NaN")};
  EXPECT_EQ(DebugString(runner.OnEvent(failed, Nanos())),
            absl::StrCat("report ", kEndsWithOneCheckpoint, "\nended INTERNAL: NaN\n"));
}

TEST_F(JobRunnerTest, GivesUpOnAProcessThatKeepsDying) {
  StartRunning();
  std::string last;
  for (uint32_t round = 1; round <= 3 && runner_.state() == JobRunner::State::kRunning; ++round) {
    last = Replace(kWorker0, round, /*own_deaths=*/round, round + 1);
  }
  EXPECT_THAT(last, HasSubstr("worker 0 was lost 3 times without any progress"));
}

// Each loss of one follows a loss of the other: that is no progress either.
TEST_F(JobRunnerTest, GivesUpOnTwoProcessesThatKeepDyingInTurns) {
  StartRunning();
  std::string last;
  for (uint32_t i = 0; i < 6 && runner_.state() == JobRunner::State::kRunning; ++i) {
    last = Replace(i % 2 == 0 ? kWorker0 : kWorker1, i / 2 + 1, /*own_deaths=*/i / 2 + 1, i + 2);
  }
  EXPECT_THAT(last, HasSubstr("worker 0 was lost 3 times without any progress"));
}

TEST_F(JobRunnerTest, NeverGivesUpOnAProcessThatIsKilledFromOutside) {
  StartRunning();
  for (uint32_t round = 1; round <= 20; ++round) {
    Replace(kWorker0, round, /*own_deaths=*/0, round + 1);
    ASSERT_EQ(runner_.state(), JobRunner::State::kRunning) << round;
  }
}

// What the job kills itself at a deadline counts, for it comes again.
TEST_F(JobRunnerTest, GivesUpOnAProcessThatKeepsMissingItsDeadline) {
  StartRunning();
  std::string last;
  for (uint32_t round = 1; round <= 3 && runner_.state() == JobRunner::State::kRunning; ++round) {
    Tell(Tick{}, Seconds(1000 * round));
    EXPECT_THAT(Tell(Tick{}, Seconds(1000 * round + 500)), HasSubstr("kill host worker"));
    last = Replace(kHost, round, /*own_deaths=*/0, round + 1);
  }
  EXPECT_THAT(last, HasSubstr("host worker was lost 3 times without any progress"));
}

// What it has trained is in the segment only, and what makes the process die may be mended.
TEST_F(JobRunnerTest, WaitsForAProcessThatKeepsDyingOnceThereIsSomethingToLose) {
  StartRunning();
  Nanos now = Seconds(10);
  const auto die = [&](uint32_t round) {
    Tell(ProcessLost{kWorker0, round}, now);
    for (const ProcessId& process : {kSwapper, kHost, kWorker1}) {
      Tell(Quiesced{process, 1, runner_.generation()}, now);
    }
    return Tell(ProcessAttached{kWorker0, round + 1, /*own_deaths=*/round}, now);
  };
  const auto go_on = [&](int64_t version) {
    for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
      Tell(Quiesced{process, 1, runner_.generation()}, now);
    }
    Tell(Tick{}, now);
    Tell(RecordsRead{runner_.generation(), Initialized(version)}, now);
  };
  uint32_t round = 0;
  std::string last;
  while (!runner_.waiting() && round < 9) {
    last = die(++round);
    if (!runner_.waiting()) go_on(/*version=*/1);
  }
  EXPECT_EQ(round, 4);  // the first brought a step
  EXPECT_THAT(last, HasSubstr("worker 0 was lost 3 times without any progress"));
  EXPECT_THAT(last, HasSubstr("the job waits and keeps what it has trained"));
  for (; round < 20; now = now + BackOff::kLongest) {
    now = now + BackOff::kLongest;
    go_on(/*version=*/1);
    ASSERT_EQ(runner_.state(), JobRunner::State::kRunning) << round;
    EXPECT_FALSE(runner_.waiting());
    die(++round);
    EXPECT_TRUE(runner_.waiting());
  }
  // A step is progress; the next deaths are counted from there.
  now = now + BackOff::kLongest;
  go_on(/*version=*/2);
  die(++round);
  EXPECT_FALSE(runner_.waiting());
  // Who is to stop leaves the step that the process dies in, and needs the host alone for the last
  // checkpoint; whatever the process does, nothing is lost.
  go_on(/*version=*/2);
  Tell(StopRequested{}, now);
  die(++round);
  for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
    Tell(Quiesced{process, 1, runner_.generation()}, now);
  }
  last = Tell(RecordsRead{runner_.generation(), Initialized(/*version=*/2)}, now);
  EXPECT_THAT(last, HasSubstr("checkpoint"));
  for (int i = 0; i < 9; ++i) {
    die(++round);
    now = now + BackOff::kLongest;
    go_on(/*version=*/2);
    EXPECT_NE(runner_.state(), JobRunner::State::kFailed);
  }
}

// A host that dies at the very start of an update leaves a moment on its way and the parameter as
// it was: such a step is finished, for no checkpoint can be made of it.
TEST_F(JobRunnerTest, AStopLeavesAStepThatHasUpdatedNothingAndNoOther) {
  for (const bool moment : {false, true}) {
    RunnerOptions options = Options();
    options.dispatch.end_step = 9;
    JobRunner runner(model_, plan_, costs_, options);
    AttachAll(runner);
    std::vector<command::ObjectView> records = Initialized(/*version=*/2);
    for (command::ObjectView& record : records) {  // one that the optimizer does not have
      if (record.key.kind == command::ObjectKind::kMoment1) record.version = 0;
    }
    for (command::ObjectView& record : records) {
      if (!moment || record.key.kind != command::ObjectKind::kMoment2 || record.key.index != 0)
        continue;
      record.state = command::ObjectState::kUpdating;
      record.version = 3;
    }
    runner.OnEvent(StopRequested{}, Nanos());
    const std::string sent = DebugString(runner.OnEvent(RecordsRead{1, records}, Nanos()));
    EXPECT_TRUE(absl::StrContains(sent, "checkpoint")) << sent;
    EXPECT_EQ(absl::StrContains(sent, "load_batch"), moment) << sent;
  }
}

TEST_F(JobRunnerTest, AStopBeforeAnythingWasTrainedEndsAtOnce) {
  AttachAll(runner_);
  Tell(StopRequested{});
  EXPECT_EQ(Tell(RecordsRead{1, {}}), "start 1\nended OK\n");
  JobRunner initialized(model_, plan_, costs_, Options());
  AttachAll(initialized);
  initialized.OnEvent(StopRequested{}, Nanos());
  EXPECT_EQ(DebugString(initialized.OnEvent(RecordsRead{1, Initialized()}, Nanos())),
            "start 1\nended OK\n");
}

// It fitted before: something else has taken the memory, and may give it back.
TEST_F(JobRunnerTest, WaitsForMemoryOnceThereIsSomethingToLose) {
  const absl::Status no_memory = absl::ResourceExhaustedError("forward of layers 0..1: no memory");
  StartRunning();
  Tell(ProcessLost{kWorker0, 1});
  for (const ProcessId& process : {kSwapper, kHost, kWorker1}) Tell(Quiesced{process, 1, 2});
  Tell(ProcessAttached{kWorker0, 2});
  Tell(RecordsRead{2, Initialized(/*version=*/1)});
  EXPECT_THAT(Tell(CommandFailed{2, 0, 1, no_memory}),
              HasSubstr("no memory: the job waits and keeps what it has trained; the next try"));
  EXPECT_TRUE(runner_.waiting());
}

TEST_F(JobRunnerTest, EndsWithoutMemoryWhenThereIsNothingToLose) {
  StartRunning();
  EXPECT_THAT(Tell(CommandFailed{1, 0, 1, absl::ResourceExhaustedError("no memory")}),
              HasSubstr("ended RESOURCE_EXHAUSTED: no memory"));
}

// A worker dies now and then, each time earlier in its step than the last time. Records that are
// given back with a step do not hide that steps have been done meanwhile.
TEST_F(JobRunnerTest, DeathsWithStepsBetweenThemAreNotAddedUp) {
  RunnerOptions options = Options();
  options.dispatch.end_step = 100;
  JobRunner runner(model_, plan_, costs_, options);
  AttachAll(runner);
  constexpr uint32_t kRounds = 10;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    std::vector<command::ObjectView> records = Initialized(/*version=*/20 + round);
    // Stashes of the step under way.
    int left = static_cast<int>(kRounds - round);
    for (command::ObjectView& record : records) {
      if (record.key.kind != command::ObjectKind::kStash || left-- <= 0) continue;
      record.state = command::ObjectState::kClean;
      record.version = 21 + round;
    }
    runner.OnEvent(RecordsRead{round, records}, Nanos());
    ASSERT_EQ(runner.state(), JobRunner::State::kRunning) << round;
    runner.OnEvent(ProcessLost{kWorker0, round}, Nanos());
    for (const ProcessId& process : {kSwapper, kHost, kWorker1}) {
      runner.OnEvent(Quiesced{process, 1, round + 1}, Nanos());
    }
    runner.OnEvent(ProcessAttached{kWorker0, round + 1, /*own_deaths=*/round}, Nanos());
  }
}

TEST_F(JobRunnerTest, AnAbortedCommandIsTriedAgainInANewGeneration) {
  StartRunning();
  const absl::Status stale = absl::AbortedError("stale file handle");
  const int host_io = command::LaneTable(2).IndexOf({command::LaneKind::kHostIo, 0});
  for (uint32_t generation = 1; generation <= 2; ++generation) {
    const std::string failed = Tell(CommandFailed{generation, host_io, 1, stale});
    EXPECT_THAT(failed, HasSubstr("host worker: stale file handle"));
    EXPECT_THAT(failed, HasSubstr(absl::StrCat("ask host worker to quiesce for ", generation + 1)));
    EXPECT_EQ(Tell(CommandFailed{generation, host_io, 1, stale}), "");  // of the one that is over
    for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
      Tell(Quiesced{process, 1, generation + 1});
    }
    EXPECT_THAT(Tell(RecordsRead{generation + 1, {}}), HasSubstr("start"));
  }
  EXPECT_THAT(Tell(CommandFailed{3, host_io, 1, stale}), HasSubstr("ended ABORTED: stale"));
  EXPECT_EQ(Tell(CommandFailed{3, 999, 1, stale}), "");
}

// The host worker lacks something outside: the job is not ended, but waits, and tries again.
TEST_F(JobRunnerTest, WaitsForWhatIsMissingOutside) {
  StartRunning();
  const int host_io = command::LaneTable(2).IndexOf({command::LaneKind::kHostIo, 0});
  Tell(LaneProgress{1, host_io, 1});  // initialised
  const absl::Status missing = absl::NotFoundError("data.bin: cannot open");
  Nanos now = Seconds(10);
  for (uint32_t generation = 1; generation <= 20; ++generation) {
    const uint64_t command = generation == 1 ? 2 : 1;
    const std::string failed = Tell(CommandFailed{generation, host_io, command, missing}, now);
    EXPECT_THAT(failed, HasSubstr("data.bin: cannot open: the job waits"));
    EXPECT_TRUE(runner_.waiting());
    for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
      EXPECT_EQ(Tell(Quiesced{process, 1, generation + 1}, now), "");
    }
    EXPECT_EQ(Tell(Tick{}, now + Millis(900)), "");
    now = now + BackOff::kLongest;
    EXPECT_EQ(Tell(Tick{}, now), absl::StrCat("read records ", generation + 1, "\n"));
    EXPECT_EQ(Tell(Tick{}, now), "");  // once
    Tell(RecordsRead{generation + 1, Initialized()}, now);
    EXPECT_FALSE(runner_.waiting());
  }
  EXPECT_THAT(Tell(LaneProgress{21, host_io, 1}), HasSubstr("what the job waited for is there"));
}

// Whatever is wrong with the files of a checkpoint: what it would have saved is kept.
TEST_F(JobRunnerTest, ACheckpointThatCannotBeWrittenTakesNothingFromTheJob) {
  RunnerOptions options = Options();
  options.dispatch.save_steps = 1;
  JobRunner runner(model_, plan_, costs_, options);
  AttachAll(runner);
  runner.OnEvent(RecordsRead{1, Initialized(/*version=*/options.dispatch.end_step)}, Nanos());
  ASSERT_EQ(runner.state(), JobRunner::State::kRunning);
  const int host_io = command::LaneTable(2).IndexOf({command::LaneKind::kHostIo, 0});
  const absl::Status large = absl::InvalidArgumentError("tokenizer.json: is too large");
  EXPECT_THAT(DebugString(runner.OnEvent(CommandFailed{1, host_io, 1, large}, Nanos())),
              HasSubstr("tokenizer.json: is too large"));
  EXPECT_NE(runner.state(), JobRunner::State::kFailed);
}

TEST_F(JobRunnerTest, TriesAtOnceWhenTold) {
  StartRunning();
  const int host_io = command::LaneTable(2).IndexOf({command::LaneKind::kHostIo, 0});
  Tell(CommandFailed{1, host_io, 1, absl::ResourceExhaustedError("too many open files")});
  for (const ProcessId& process : {kSwapper, kHost, kWorker0}) Tell(Quiesced{process, 1, 2});
  EXPECT_EQ(Tell(TryNow{}), "");  // one still runs something
  EXPECT_EQ(Tell(Quiesced{kWorker1, 1, 2}), "read records 2\n");
}

// What is wrong with the files before anything was trained is the job's fault, as is any result.
TEST_F(JobRunnerTest, DoesNotWaitForItsOwnFaults) {
  StartRunning();
  const int host_io = command::LaneTable(2).IndexOf({command::LaneKind::kHostIo, 0});
  EXPECT_THAT(Tell(CommandFailed{1, host_io, 1, absl::NotFoundError("model.safetensors")}),
              HasSubstr("ended NOT_FOUND: model.safetensors"));
}

// A run that goes on from a checkpoint had its files.
TEST_F(JobRunnerTest, WaitsForTheFilesOfACheckpointThatItGoesOnFrom) {
  RunnerOptions options = Options();
  options.dispatch.first_step = 1;
  JobRunner runner(model_, plan_, costs_, options);
  AttachAll(runner);
  runner.OnEvent(RecordsRead{1, {}}, Nanos());
  const int host_io = command::LaneTable(2).IndexOf({command::LaneKind::kHostIo, 0});
  EXPECT_THAT(DebugString(runner.OnEvent(
                  CommandFailed{1, host_io, 1, absl::NotFoundError("model.safetensors")}, Nanos())),
              HasSubstr("model.safetensors: the job waits"));
  EXPECT_TRUE(runner.waiting());
}

// Processes that compute or copy for long are given the time to finish; ten times the model's.
TEST_F(JobRunnerTest, DeadlinesGrowWithWhatRuns) {
  struct SlowHost : dispatch::CostModel {
    Nanos Duration(const command::Command&) const override { return Seconds(6); }
  } slow;
  JobRunner runner(model_, plan_, slow, Options());
  const auto tell = [&](const Event& event, Nanos now) {
    return DebugString(runner.OnEvent(event, now));
  };
  for (const ProcessId& process : {kSwapper, kHost, kWorker0, kWorker1}) {
    tell(ProcessAttached{process, 1}, Nanos());
  }
  tell(RecordsRead{1, {}}, Nanos());
  tell(ProcessLost{kWorker1, 1}, Nanos());
  EXPECT_EQ(tell(Tick{}, Seconds(90)), "");
  EXPECT_THAT(tell(Tick{}, Seconds(91)), HasSubstr("kill host worker"));
}

}  // namespace
}  // namespace harmony::runner
