#include "coordinator/dispatch/issue/dispatcher.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "coordinator/dispatch/issue/generation.h"

namespace harmony::dispatch {

class Dispatcher::Impl {
 public:
  Impl(const model::ModelSpec& model, const plan::Plan& plan, const CostModel& costs,
       DispatchOptions options)
      : job_{model, plan, costs, options, plan::ArenaLayout(model, plan), KeptLayout(model, plan),
             command::ObjectTableLayout(model, plan.num_microbatches, plan.replicas),
             options.end_step,
             // A job that has no step left begins again only because its end was not written.
             options.first_step > 0 && options.first_step < options.end_step ? options.first_step
                                                                             : -1,
             false, Saving::kAsPlanned},
        peaks_(plan.devices.size()) {}

  JobContext job_;
  std::unique_ptr<Generation> generation_;
  bool stop_ = false;
  std::vector<Bytes> peaks_;  // of earlier generations
  Bytes ring_peak_;

  void KeepPeaks() {
    if (generation_ == nullptr) return;
    for (size_t d = 0; d < peaks_.size(); ++d) {
      peaks_[d] = std::max(peaks_[d], generation_->PeakBytes(static_cast<int>(d)));
    }
    ring_peak_ = std::max(ring_peak_, generation_->ring().peak());
  }
};

Dispatcher::Dispatcher(const model::ModelSpec& model, const plan::Plan& plan,
                       const CostModel& costs, DispatchOptions options)
    : impl_(std::make_unique<Impl>(model, plan, costs, options)) {}

Dispatcher::~Dispatcher() = default;

absl::Status Dispatcher::BeginGeneration(uint32_t /*generation*/,
                                         absl::Span<const command::ObjectView> records) {
  JobContext& job = impl_->job_;
  HARMONY_RETURN_IF_ERROR(plan::CheckPlan(job.model, job.plan));
  HARMONY_ASSIGN_OR_RETURN(
      recovery::Frontier frontier,
      recovery::Frontier::FromRecords(job.table, records, job.options.first_step));
  impl_->KeepPeaks();
  job.resumed = impl_->generation_ != nullptr;
  if (impl_->stop_) {
    // A step that has updated something is finished. One that has not is left: a checkpoint needs
    // the host only, and the step needs all devices, of which one may be what fails.
    const bool updated = frontier.initialized() && !frontier.whole();
    const int64_t first = job.options.first_step, end = frontier.step() + int{updated};
    // Of a job that has trained nothing there is nothing to save either.
    if (end == first && first < job.options.end_step) {
      job.saved_version = std::max(job.saved_version, first);
    }
    job.end_step = std::min(job.end_step, end);
  }
  impl_->generation_ = std::make_unique<Generation>(job, std::move(frontier), records);
  return impl_->generation_->Begin();
}

void Dispatcher::OnLaneProgress(int lane, uint64_t value) {
  impl_->generation_->OnLaneProgress(lane, value);
}

absl::StatusOr<std::vector<command::Command>> Dispatcher::NextCommands() {
  std::vector<command::Command> commands;
  HARMONY_RETURN_IF_ERROR(impl_->generation_->Issue(commands));
  return commands;
}

absl::StatusOr<DryRunTimes> Dispatcher::DryRun() {
  DryRunTimes times;
  HARMONY_RETURN_IF_ERROR(impl_->generation_->RunDry(times));
  return times;
}

void Dispatcher::StopAfterCurrentStep() {
  if (impl_->stop_) return;
  impl_->stop_ = true;
  if (impl_->generation_ != nullptr) impl_->generation_->Stop();
}

bool Dispatcher::PutOffCheckpoint(int64_t step) {
  if (step + 1 >= impl_->job_.end_step) return false;
  impl_->job_.saving = Saving::kNotNow;
  return true;
}

void Dispatcher::SaveNext() {
  if (impl_->job_.saving == Saving::kNotNow) impl_->job_.saving = Saving::kNext;
}

int64_t Dispatcher::completed_steps() const {
  return impl_->generation_ == nullptr ? impl_->job_.options.first_step
                                       : impl_->generation_->completed_steps();
}

bool Dispatcher::done() const {
  return impl_->generation_ != nullptr && impl_->generation_->done();
}

const command::Command* Dispatcher::Find(int lane, uint64_t value) const {
  return impl_->generation_ == nullptr ? nullptr : impl_->generation_->Find(lane, value);
}

Bytes Dispatcher::PeakBytes(int device) const {
  impl_->KeepPeaks();
  if (device >= 0) return impl_->peaks_[device];
  const plan::ArenaLayout& layout = impl_->job_.layout;
  return layout.dynamic_bytes() - layout.ring_bytes() + impl_->ring_peak_;
}

}  // namespace harmony::dispatch
