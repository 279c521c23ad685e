// harmony-worker as a process: job set-up, a task, errors, a lost coordinator, signals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "common/ipc/segment.h"
#include "common/job/job_file.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_spec.h"
#include "common/plan/arena_layout.h"
#include "common/rpc/command_codec.h"
#include "tests/support/fake_coordinator.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 32,
  "n_embd": 32, "n_layer": 1, "n_head": 2, "activation_function": "gelu_new"})";
const uint32_t kCompute =
    static_cast<uint32_t>(command::LaneTable(1).IndexOf({command::LaneKind::kCompute, 0}));

class WorkerProcessTest : public ::testing::Test {
 protected:
  WorkerProcessTest()
      : segment_(*ipc::Segment::Create(MiB(64))),
        device_(*ipc::CreateDeviceRegion(0, MiB(4))),
        memory_(*ipc::MappedRegion::Map(device_.get())),
        coordinator_(folder_.path() + "/socket", 1) {
    EXPECT_TRUE(ipc::AllowInheritance(segment_.fd()).ok());
    EXPECT_TRUE(ipc::AllowInheritance(device_.get()).ok());
  }

  void Spawn(const std::string& device = "0", const std::string& devices = "sim:mem=4MiB") {
    worker_ = std::make_unique<testing_support::SpawnedProgram>(
        "harmony-worker",
        std::vector<std::string>{"--socket", folder_.path() + "/socket", "--devices", devices,
                                 "--device", device, "--log-level", "error"},
        std::vector<std::string>{"HARMONY_SEGMENT_FD=" + std::to_string(segment_.fd()),
                                 "HARMONY_DEVICE_FDS=" + ipc::FormatDeviceFds({{0, device_.get()}}),
                                 "HARMONY_PARENT_PID=" + std::to_string(getpid())});
  }
  static plan::Plan TestPlan() {
    plan::Plan plan;
    plan.microbatch_size = 1;
    plan.sequence_length = 8;
    plan.backward_groups = {{{0, 2}, 0}};
    plan.devices = {{.memory = MiB(4), .resident = MiB(1)}};
    return plan;
  }
  v1::JobReady SetUpJob(const std::string& config) {
    v1::ToProcess message;
    message.mutable_job()->set_job_id("job");
    job::JobSpec job;
    job.model_name_or_path = "gpt2-124m";
    job.data_path = folder_.path() + "/data";
    job.output_dir = folder_.path() + "/out";
    job.sequence_length = 8;
    job.global_batch_size = job.micro_batch_size = 1;
    message.mutable_job()->set_job_json(job::JobSpecToJson(job));
    message.mutable_job()->set_model_config_json(config);
    message.mutable_job()->set_plan(rpc::SerializePlan(TestPlan()));
    coordinator_.Send(message);
    return coordinator_.Await([](const v1::FromProcess& answer) { return answer.has_job_ready(); })
        .job_ready();
  }
  void Begin(uint32_t generation) {
    ASSERT_TRUE(segment_.RaiseGeneration(generation).ok());
    ASSERT_TRUE(segment_.BeginGeneration(generation).ok());
    coordinator_.SendStart(generation);
  }
  // The embedding's forward of zeros.
  command::Command Embed(uint64_t value) const {
    const model::ModelSpec model =
        model::BuildModelSpec(*model::ParseModelConfig(kConfig, "config.json"), 8);
    command::ComputeTask task;
    task.layers = {0, 0};
    task.samples = 1;
    Bytes next;
    for (int reference : model.layers[0].references) {
      task.weights.push_back({reference, next});
      next = (next + model.blocks[model.references[reference].block].weight_bytes)
                 .AlignUp(kSlotAlignment);
    }
    task.inputs = {{model::kTokenIds, next}};
    task.outputs = {{1, next + KiB(4)}};
    command::Command command;
    command.header.lane = kCompute;
    command.header.signal_value = value;
    command.body = task;
    return command;
  }

  testing_support::TemporaryFolder folder_;
  ipc::Segment segment_;
  ipc::UniqueFd device_;
  ipc::MappedRegion memory_;
  testing_support::FakeCoordinator coordinator_;
  std::unique_ptr<testing_support::SpawnedProgram> worker_;
};

TEST_F(WorkerProcessTest, SetsAJobUpComputesAndExitsOnSigterm) {
  Spawn();
  const v1::Hello hello = coordinator_.AwaitHello();
  EXPECT_EQ(hello.role(), v1::ROLE_WORKER);
  EXPECT_EQ(hello.device(), 0);
  ASSERT_EQ(SetUpJob(kConfig).message(), "");
  ASSERT_EQ(SetUpJob(kConfig).message(), "") << "again, as after a coordinator's restart";
  Begin(1);
  coordinator_.SendCommands(1, {Embed(1), Embed(2)});
  coordinator_.AwaitProgress(1, kCompute, 2);
  EXPECT_EQ(segment_.Semaphore(1, kCompute).value(), 2);
  coordinator_.BreakStream();
  EXPECT_EQ(coordinator_.AwaitHello().generation(), 1);
  ASSERT_EQ(SetUpJob(kConfig).message(), "");
  Begin(2);
  coordinator_.SendCommands(2, {Embed(1)});
  coordinator_.AwaitProgress(2, kCompute, 1);
  worker_->Signal(SIGTERM);
  EXPECT_EQ(worker_->Wait(), 0);
}

TEST_F(WorkerProcessTest, AnswersWhyAJobCannotBeSetUp) {
  Spawn();
  coordinator_.AwaitHello();
  const v1::JobReady ready = SetUpJob(R"({"model_type": "bert"})");
  EXPECT_NE(ready.code(), 0);
  EXPECT_THAT(ready.message(), HasSubstr("bert"));
  ASSERT_EQ(SetUpJob(kConfig).message(), "");
}

TEST_F(WorkerProcessTest, ATaskWithoutMemoryFails) {
  Spawn();
  coordinator_.AwaitHello();
  ASSERT_EQ(SetUpJob(kConfig).message(), "");
  Begin(1);
  command::Command command = Embed(1);
  std::get<command::ComputeTask>(command.body).outputs[0].offset = MiB(1);
  coordinator_.SendCommands(1, {command});
  const auto failed =
      coordinator_.Await([](const v1::FromProcess& message) { return message.has_failed(); });
  EXPECT_EQ(failed.failed().value(), 1);
  EXPECT_THAT(failed.failed().message(), HasSubstr("step 1, forward of layers 0..0"));
}

TEST_F(WorkerProcessTest, TheHostWorkerInitialisesAndLoadsABatch) {
  const model::ModelSpec model =
      model::BuildModelSpec(*model::ParseModelConfig(kConfig, "config.json"), 8);
  const plan::ArenaLayout layout(model, TestPlan());
  const command::ObjectTableLayout table(model, 1);
  ipc::SegmentJob job;
  job.id = "job";
  job.record_count = table.size();
  job.cursor_count = ipc::CursorCount(model);
  job.extent = layout.end();
  job.persistent = layout.persistent_bytes();
  ASSERT_TRUE(segment_.AllocateJob(job).ok());
  std::ofstream(folder_.path() + "/data") << "the quick brown fox jumps over the lazy dog";
  Spawn("host");
  EXPECT_EQ(coordinator_.AwaitHello().role(), v1::ROLE_HOST_WORKER);
  ASSERT_EQ(SetUpJob(kConfig).message(), "");
  Begin(1);
  const command::LaneTable lanes(1);
  command::Command initialize, batch;
  initialize.header.lane = batch.header.lane =
      static_cast<uint32_t>(lanes.IndexOf({command::LaneKind::kHostIo, 0}));
  initialize.header.signal_value = 1;
  command::HostTask task;
  task.kind = command::HostTaskKind::kInitialize;
  initialize.body = task;
  batch.header.signal_value = 2;
  task.kind = command::HostTaskKind::kLoadBatch;
  task.offset = layout.Batch(0);
  batch.body = task;
  coordinator_.SendCommands(1, {initialize, batch});
  coordinator_.AwaitProgress(1, batch.header.lane, 2);
  EXPECT_EQ(segment_.ReadRecord(table.IndexOf({command::ObjectKind::kParameter, 0, 0}))->state,
            command::ObjectState::kClean);
  const command::ObjectView loaded =
      *segment_.ReadRecord(table.IndexOf({command::ObjectKind::kBatch, 0, 0}));
  EXPECT_EQ(loaded.version, 1);
  const auto* tokens =
      reinterpret_cast<const int32_t*>(segment_.Arena(layout.Input(0, model::kTokenIds, 0)));
  EXPECT_EQ(tokens[0], 't');
  EXPECT_EQ(tokens[1], 'h');
  worker_->Signal(SIGTERM);
  EXPECT_EQ(worker_->Wait(), 0);
}

TEST_F(WorkerProcessTest, BadDevicesAreRefused) {
  Spawn("7");
  EXPECT_EQ(worker_->Wait(), 2);
  Spawn("0", "cuda:0,mem=4MiB");
  EXPECT_EQ(worker_->Wait(), 2);
  Spawn("0", "sim:mem=8MiB");
  EXPECT_EQ(worker_->Wait(), 2);
}

}  // namespace
}  // namespace harmony::worker
