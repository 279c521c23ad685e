#include "worker/profile/host_profiler.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/float_convert.h"
#include "common/plan/arena_layout.h"
#include "worker/host/host_executor.h"

namespace harmony::worker {
namespace {

constexpr int kWakes = 200;
constexpr Nanos kWakeDeadline = Seconds(10);

// Runs the host tasks of step after step, keeping the time of each kind.
class HostMeter {
 public:
  HostMeter(ipc::Segment& segment, profile::HostWorkload work, const job::JobSpec& job,
            BytesPerSecond paced)
      : segment_(segment),
        work_(std::move(work)),
        optimizer_(profile::OptimizerName(job)),
        paced_(paced),
        layout_(work_.model, work_.plan),
        table_(work_.model, work_.plan.num_microbatches) {}

  absl::Status Open(const runtime::ProfileCall& call, const std::string& scratch) {
    HostJob job;
    job.spec = call.job;
    job.spec.init = job::InitMode::kRandom;
    job.spec.output_dir = scratch;
    job.spec.max_grad_norm = 0;
    job.model = work_.model;
    job.plan = work_.plan;
    job.config_json = call.request.config_json;
    HARMONY_ASSIGN_OR_RETURN(executor_, HostExecutor::Create(segment_, std::move(job)));
    // Gradients: any values do.
    for (int reference = 0; reference < num_blocks(); ++reference) {
      FillGradient(work_.model.blocks[reference], layout_.Gradient(reference));
    }
    HARMONY_ASSIGN_OR_RETURN(const double seconds,
                             Run(command::HostTaskKind::kInitialize, -1, Bytes(), 0));
    const Bytes state = command::PersistentBytes(work_.model, work_.plan.optimizer_moments);
    initialize_.push_back(Rate(state, seconds));
    return absl::OkStatus();
  }

  absl::Status Step(int64_t step) {
    const int parity = static_cast<int>(step & 1);
    HARMONY_ASSIGN_OR_RETURN(const double batch, Run(command::HostTaskKind::kLoadBatch, -1,
                                                     layout_.Batch(parity), step));
    batch_.push_back(Rate(layout_.batch_bytes(), batch));
    CommitInputs(step);
    HARMONY_ASSIGN_OR_RETURN(const double task, Run(command::HostTaskKind::kStepScalars, -1,
                                                    layout_.Scalars(parity), step));
    task_.push_back(task);
    double norm = 0, update = 0;
    Bytes norm_bytes, update_bytes;
    for (int block = 0; block < num_blocks(); ++block) {
      HARMONY_ASSIGN_OR_RETURN(const double seconds,
                               Run(command::HostTaskKind::kNorm, block, layout_.Norm(block), step));
      norm += NetOf(seconds, task);
      norm_bytes += work_.model.blocks[block].gradient_bytes;
    }
    for (int block = 0; block < num_blocks(); ++block) {
      HARMONY_ASSIGN_OR_RETURN(const double seconds,
                               Run(command::HostTaskKind::kUpdate, block, Bytes(), step));
      update += NetOf(seconds, task);
      update_bytes += profile::UpdateBytes(work_.model.blocks[block], work_.plan.optimizer_moments);
    }
    norm_.push_back(Paced(Rate(norm_bytes, norm)));
    update_.push_back(Paced(Rate(update_bytes, update)));
    return absl::OkStatus();
  }

  // The first step touches memory and is left out.
  profile::HostProfile Result() {
    for (std::vector<double>* values : {&batch_, &task_, &norm_, &update_}) {
      values->erase(values->begin());
    }
    profile::HostProfile host;
    host.optimizer = optimizer_;
    host.update_rate = profile::MeasuredOf(update_);
    host.norm_rate = profile::MeasuredOf(norm_);
    host.batch_rate = profile::MeasuredOf(batch_);
    host.initialize_rate = profile::MeasuredOf(initialize_);
    host.task = profile::MeasuredOf(task_);
    return host;
  }

 private:
  int num_blocks() const { return static_cast<int>(work_.model.blocks.size()); }
  static double Rate(Bytes bytes, double seconds) {
    return static_cast<double>(bytes.count()) / std::max(seconds, 1e-9);
  }
  double Paced(double rate) const { return paced_.value > 0 ? std::min(rate, paced_.value) : rate; }
  // Without the fixed part, which a task of a tiny block consists of almost wholly.
  static double NetOf(double seconds, double fixed) {
    return std::max(seconds - fixed, seconds / 10);
  }

  void FillGradient(const model::ParamBlock& block, Bytes offset) const {
    for (const model::TensorSpec& tensor : block.tensors) {
      if (tensor.role != model::TensorRole::kTrained) continue;
      const auto value = [](int64_t i) { return 1e-3f * static_cast<float>(i % 17 - 8); };
      std::byte* const at = segment_.Arena(offset + tensor.gradient.offset);
      for (int64_t i = 0; i < tensor.elements; ++i) {
        if (tensor.gradient.dtype == DType::kBF16) {
          reinterpret_cast<uint16_t*>(at)[i] = io::Bf16FromFloat(value(i));
        } else {
          reinterpret_cast<float*>(at)[i] = value(i);
        }
      }
    }
  }

  // What the swapper would have committed.
  void CommitInputs(int64_t step) {
    const uint64_t version = static_cast<uint64_t>(step) + 1;
    command::LossSlot* slot = reinterpret_cast<command::LossSlot*>(segment_.Arena(layout_.Loss()));
    slot->loss_sum = 1;
    slot->label_count = 1;
    Publish({command::ObjectKind::kLoss, 0, 0}, layout_.Loss(), Bytes(sizeof(command::LossSlot)),
            version);
    for (int reference = 0; reference < num_blocks(); ++reference) {
      Publish({command::ObjectKind::kGradient, reference, 0}, layout_.Gradient(reference),
              work_.model.blocks[reference].gradient_bytes, version);
    }
  }
  void Publish(const command::ObjectKey& key, Bytes offset, Bytes size, uint64_t version) {
    segment_.Publish(table_.IndexOf(key),
                     {key, offset, size, version, command::ObjectState::kClean});
  }

  absl::StatusOr<double> Run(command::HostTaskKind kind, int block, Bytes offset, int64_t step) {
    command::HostTask task;
    task.kind = kind;
    task.block = block;
    task.offset = offset;
    if (block >= 0) {
      task.gradient_records = {table_.IndexOf({command::ObjectKind::kGradient, block, 0})};
    }
    command::CommandHeader header;
    header.step = step;
    const Nanos start = MonotonicClock().Now();
    HARMONY_RETURN_IF_ERROR(executor_->Execute(task, header));
    return (MonotonicClock().Now() - start).seconds();
  }

  ipc::Segment& segment_;
  const profile::HostWorkload work_;
  const std::string optimizer_;
  const BytesPerSecond paced_;
  const plan::ArenaLayout layout_;
  const command::ObjectTableLayout table_;
  std::unique_ptr<HostExecutor> executor_;
  std::vector<double> initialize_, batch_, task_, norm_, update_;
};

// From a signal to the waiter: two threads wake each other in turn.
absl::StatusOr<profile::Measured> MeasureWakes(ipc::Segment& segment) {
  ipc::TimelineSemaphore mine = segment.Semaphore(kProfileGeneration, ipc::kSemaphoresPerBank - 2);
  ipc::TimelineSemaphore others =
      segment.Semaphore(kProfileGeneration, ipc::kSemaphoresPerBank - 1);
  const ipc::GenerationGuard guard = segment.Guard(kProfileGeneration);
  std::jthread other([&, others]() mutable {
    for (uint64_t i = 1; i <= kWakes; ++i) {
      if (!mine.WaitFor(i, guard, kWakeDeadline).ok()) return;
      others.Signal(i);
    }
  });
  std::vector<double> seconds;
  for (uint64_t i = 1; i <= kWakes; ++i) {
    const Nanos start = MonotonicClock().Now();
    mine.Signal(i);
    HARMONY_RETURN_IF_ERROR_CTX(others.WaitFor(i, guard, kWakeDeadline), "measuring wake-ups");
    seconds.push_back((MonotonicClock().Now() - start).seconds() / 2);
  }
  return profile::MeasuredOf(seconds);
}

}  // namespace

absl::StatusOr<profile::HostProfile> MeasureHost(ipc::Segment& segment,
                                                 const runtime::ProfileCall& call,
                                                 const std::string& scratch, BytesPerSecond paced) {
  HARMONY_ASSIGN_OR_RETURN(const profile::Measured wake, MeasureWakes(segment));
  HostMeter meter(segment, profile::HostWorkloadOf(call.model, call.job), call.job, paced);
  HARMONY_RETURN_IF_ERROR(meter.Open(call, scratch));
  const runtime::RepeatLimits limits =
      call.request.quick ? runtime::kQuickRepeats : runtime::RepeatLimits{5, 50, Seconds(1)};
  const Nanos start = MonotonicClock().Now();
  for (int64_t step = 0; step <= limits.most; ++step) {
    if (step > limits.least && MonotonicClock().Now() - start > limits.enough) break;
    HARMONY_RETURN_IF_ERROR(meter.Step(step));
  }
  profile::HostProfile host = meter.Result();
  host.wake = wake;
  return host;
}

}  // namespace harmony::worker
