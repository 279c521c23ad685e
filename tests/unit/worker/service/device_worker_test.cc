#include "worker/service/device_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/model/families/causal_lm.h"
#include "common/model/gradient_times.h"
#include "worker/device/sim_backend.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"model_type": "gpt2", "vocab_size": 97, "n_positions": 32,
  "n_embd": 32, "n_layer": 2, "n_head": 2, "activation_function": "gelu_new",
  "tie_word_embeddings": false})";
constexpr Bytes kMemory = MiB(4);
constexpr Bytes kResident = MiB(2);
constexpr int64_t kTokens = 16;

// A device with one group of all layers: weights, gradients, tokens, labels, loss behind each
// other.
class DeviceWorkerTest : public ::testing::Test {
 protected:
  DeviceWorkerTest() {
    device_.memory = kMemory;
    StartWorker();
    job_ = MakeJob(kResident);
  }

  // Of device_, as a test has changed it; the one before is gone.
  void StartWorker() {
    worker_.reset();
    const ipc::UniqueFd fd = *ipc::CreateDeviceRegion(0, kMemory);
    mine_ = *ipc::MappedRegion::Map(fd.get());
    memory_ = mine_.data();
    worker_ = *DeviceWorker::Create(device_, MakeSimBackend(*ipc::MappedRegion::Map(fd.get())));
  }

  static runtime::AttachedJob MakeJob(Bytes resident) {
    runtime::AttachedJob job;
    job.id = "job";
    job.architecture = *model::ParseArchitecture(kConfig, "config.json");
    job.model = model::BuildModelSpec(job.architecture, kTokens);
    job.plan.sequence_length = kTokens;
    job.plan.devices = {plan::DevicePlan{.memory = kMemory, .resident = resident}};
    return job;
  }

  // The fused task of all layers over 2 sequences; its bindings are filled with weights and ids.
  command::Command FusedTask() {
    command::ComputeTask task;
    task.kind = command::TaskKind::kForwardBackward;
    task.layers = {0, job_.model.num_layers() - 1};
    task.samples = 2;
    task.first_microbatch = task.last_microbatch = task.stores_gradients = true;
    task.total_labels = 2 * kTokens;
    CounterRandom random(5);
    Bytes next;
    const auto place = [&next](Bytes size) {
      const Bytes offset = next;
      next = (next + size).AlignUp(kSlotAlignment);
      return offset;
    };
    for (int reference = 0; reference < static_cast<int>(job_.model.references.size());
         ++reference) {
      const model::ParamBlock& block = job_.model.blocks[job_.model.references[reference].block];
      task.weights.push_back({reference, place(block.weight_bytes)});
      task.gradients.push_back({reference, place(block.weight_bytes)});
      for (int64_t i = 0; i < block.elements(); ++i) {
        At<float>(task.weights.back().offset)[i] =
            static_cast<float>(random.NextDouble() - 0.5) * 0.1f;
      }
    }
    const Bytes ids(task.samples * kTokens * 4);
    task.inputs = {{model::kTokenIds, place(ids)}, {model::kLabels, place(ids)}};
    task.loss = place(Bytes(sizeof(command::LossSlot)));
    for (int64_t i = 0; i < task.samples * kTokens; ++i) {
      At<int32_t>(task.inputs[model::kTokenIds].offset)[i] = static_cast<int32_t>(random.Below(97));
      At<int32_t>(task.inputs[model::kLabels].offset)[i] = static_cast<int32_t>(random.Below(97));
    }
    EXPECT_LE(next, kResident);
    command::Command command;
    command.header.step = 6;
    command.body = task;
    return command;
  }
  static command::ComputeTask& Body(command::Command& command) {
    return std::get<command::ComputeTask>(command.body);
  }

  template <typename T>
  T* At(Bytes offset) {
    return reinterpret_cast<T*>(memory_ + offset.count());
  }

  plan::DeviceSpec device_;
  ipc::MappedRegion mine_;
  std::byte* memory_ = nullptr;
  std::unique_ptr<DeviceWorker> worker_;
  runtime::AttachedJob job_;
};

TEST_F(DeviceWorkerTest, RunsATaskOnBoundMemory) {
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  command::Command command = FusedTask();
  ASSERT_EQ(worker_->Run(command), absl::OkStatus());
  const command::LossSlot loss = *At<command::LossSlot>(*Body(command).loss);
  EXPECT_EQ(loss.label_count, 2 * kTokens);
  EXPECT_NEAR(loss.loss_sum / (2 * kTokens), std::log(97.0), 0.5);
  const DeviceWorker::Stats stats = worker_->stats();
  EXPECT_GT(stats.workspace_peak, Bytes(0));
  EXPECT_LE(stats.workspace_peak, kMemory - kResident);

  // The same again, after a set-up anew: the same bits.
  float* gradient = At<float>(Body(command).gradients[1].offset);
  const std::vector<float> first(gradient, gradient + 100);
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  ASSERT_TRUE(worker_->Run(command).ok());
  EXPECT_EQ(std::memcmp(first.data(), gradient, 400), 0);
  EXPECT_EQ(At<command::LossSlot>(*Body(command).loss)->loss_sum, loss.loss_sum);
}

// A task whose gradient buffers are still being copied begins, and leaves each alone until its copy
// is done; the last layer's comes first.
TEST_F(DeviceWorkerTest, AGradientIsNotTouchedBeforeItsBufferIsFree) {
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  command::Command command = FusedTask();
  ASSERT_EQ(worker_->Run(command), absl::OkStatus());
  command::ComputeTask& task = Body(command);
  constexpr float kOld = 77;
  const auto numbers = [&](size_t i) {
    const int block = job_.model.references[static_cast<size_t>(task.gradients[i].reference)].block;
    return absl::MakeSpan(At<float>(task.gradients[i].offset),
                          static_cast<size_t>(job_.model.blocks[block].elements()));
  };
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < task.gradients.size(); ++i) {
    expected.emplace_back(numbers(i).begin(), numbers(i).end());
    const absl::Span<float> all = numbers(i);
    absl::c_fill(all, kOld);
    task.gradient_waits.push_back({3, 100 - i});
  }
  std::vector<uint64_t> awaited;
  const auto await = [&](const command::SemaphoreWait& wait) {
    EXPECT_EQ(wait.semaphore, 3);
    awaited.push_back(wait.value);
    for (size_t i = 0; i <= 100 - wait.value; ++i) {
      EXPECT_THAT(numbers(i), ::testing::Each(kOld)) << i << ", " << wait.value;
    }
    return absl::OkStatus();
  };
  ASSERT_EQ(worker_->Run(command, await), absl::OkStatus());
  ASSERT_EQ(awaited.size(), task.gradients.size());
  EXPECT_TRUE(absl::c_is_sorted(awaited));
  for (size_t i = 0; i < task.gradients.size(); ++i) {
    EXPECT_THAT(numbers(i), ::testing::ElementsAreArray(expected[i])) << i;
  }
  const auto over = [](const command::SemaphoreWait&) { return absl::AbortedError("over"); };
  EXPECT_EQ(worker_->Run(command, over).code(), absl::StatusCode::kAborted);
}

TEST_F(DeviceWorkerTest, NothingRunsWithoutAJob) {
  EXPECT_EQ(worker_->Run(FusedTask()).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  worker_->EndJob();
  EXPECT_EQ(worker_->Run(FusedTask()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DeviceWorkerTest, ANonFiniteResultNamesStepAndLayers) {
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  command::Command command = FusedTask();
  At<float>(Body(command).weights[1].offset)[0] = std::numeric_limits<float>::quiet_NaN();
  const absl::Status status = worker_->Run(command);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 7"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers 0..3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("not finite"));
}

TEST_F(DeviceWorkerTest, GoingOverTheWorkspaceNamesTaskAndSizes) {
  ASSERT_TRUE(worker_->SetUpJob(MakeJob(kMemory - KiB(4))).ok());
  const absl::Status status = worker_->Run(FusedTask());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("forward-backward of layers 0..3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("4.00 KiB"));
  // The device is usable afterwards.
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  EXPECT_EQ(worker_->Run(FusedTask()), absl::OkStatus());
}

TEST_F(DeviceWorkerTest, RefusesBindingsOutsideTheResidentPart) {
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  const auto code = [&](auto change) {
    command::Command command = FusedTask();
    change(Body(command));
    return worker_->Run(command).code();
  };
  using absl::StatusCode;
  EXPECT_EQ(code([](command::ComputeTask& task) { task.loss = kResident; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](command::ComputeTask& task) { task.loss = Bytes(8); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      code([](command::ComputeTask& task) { task.inputs[0].offset = Bytes(-kSlotAlignment); }),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](command::ComputeTask& task) { task.weights[0].reference = 99; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](command::ComputeTask& task) { task.layers.last = 9; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](command::ComputeTask& task) { task.samples = int64_t{1} << 40; }),
            StatusCode::kInvalidArgument);
}

// Also those that only together with the replica's number would lead back into the resident part.
TEST_F(DeviceWorkerTest, RefusesGradientBuffersOutsideTheResidentPart) {
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  for (const int64_t stride :
       {int64_t{0}, int64_t{8}, kResident.count(), -kResident.count(), int64_t{1} << 62,
        std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    for (const int replica : {1, 3, 15}) {
      command::Command command = FusedTask();
      Body(command).replica = replica;
      Body(command).gradient_stride = Bytes(stride);
      EXPECT_EQ(worker_->Run(command).code(), absl::StatusCode::kInvalidArgument)
          << stride << ", replica " << replica;
    }
  }
}

TEST_F(DeviceWorkerTest, RefusesAPlanOfAnotherDevice) {
  runtime::AttachedJob job = MakeJob(kResident);
  job.plan.devices[0].memory = kMemory - KiB(4);
  EXPECT_EQ(worker_->SetUpJob(job).code(), absl::StatusCode::kInvalidArgument);
  job = MakeJob(kMemory + KiB(4));
  EXPECT_EQ(worker_->SetUpJob(job).code(), absl::StatusCode::kInvalidArgument);
  job.plan.devices.clear();
  EXPECT_EQ(worker_->SetUpJob(job).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceWorkerTest, TheContextOfADeviceIsNotPlannedWith) {
  device_.context = KiB(64);
  StartWorker();
  EXPECT_EQ(worker_->SetUpJob(job_).code(), absl::StatusCode::kInvalidArgument);
  job_.plan.devices[0].memory = device_.usable();
  EXPECT_TRUE(worker_->SetUpJob(job_).ok());
}

TEST_F(DeviceWorkerTest, PacedTasksTakeTheirModelledTime) {
  device_.flops = FlopsPerSecond{1e9};
  StartWorker();
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  command::Command command = FusedTask();
  command.header.expected = Millis(50);
  const Nanos begin = MonotonicClock().Now();
  ASSERT_TRUE(worker_->Run(command).ok());
  EXPECT_GE(MonotonicClock().Now() - begin, Millis(50));
  EXPECT_EQ(worker_->stats().paced, 1);
}

// As a device of that speed would: it loses the time from when it comes to a gradient until the
// buffer is free.
TEST_F(DeviceWorkerTest, APacedTaskThatWaitsOnItsWayIsLateByWhatItLacks) {
  device_.flops = FlopsPerSecond{1e9};
  StartWorker();
  ASSERT_TRUE(worker_->SetUpJob(job_).ok());
  command::Command command = FusedTask();
  command.header.expected = Millis(40);
  Body(command).gradient_waits.assign(Body(command).gradients.size(), {3, 1});
  Nanos free;
  const auto await = [&](const command::SemaphoreWait&) {
    if (free == Nanos()) {
      // The first that it comes to is the last layer's: some way into the forward.
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      free = MonotonicClock().Now();
    }
    return absl::OkStatus();
  };
  ASSERT_TRUE(worker_->Run(command, await).ok());
  const Nanos end = MonotonicClock().Now();
  const double share = model::GradientTimes(job_.model)
                           .Shares(model::BackwardTask::kFused, Body(command).layers)
                           .back();
  EXPECT_GT(share, 0);
  EXPECT_GE(end, free + Nanos::FromSeconds(0.040 * (1 - share)));
}

TEST_F(DeviceWorkerTest, MemoryOfAnotherSizeIsRefused) {
  device_.memory = kMemory + KiB(4);
  const ipc::UniqueFd fd = *ipc::CreateDeviceRegion(0, kMemory);
  const absl::Status status =
      DeviceWorker::Create(device_, MakeSimBackend(*ipc::MappedRegion::Map(fd.get()))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its specification says"));
}

}  // namespace
}  // namespace harmony::worker
