// harmony-swapper: moves data between the host arena and the devices.

#include <atomic>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/runtime/program.h"
#include "common/runtime/segment_semaphores.h"
#include "harmony/v1/attach.pb.h"
#include "swapper/copies/copy_service.h"
#include "swapper/profile/link_profiler.h"
#include "swapper/service/gpu_readings.h"

namespace harmony::swapper {
namespace {

class SwapperHandler : public runtime::AttachedHandler {
 public:
  SwapperHandler(CopyService* copies, GpuReader read_gpus)
      : copies_(copies), read_gpus_(std::move(read_gpus)) {}

  // Transfers carry all they need; the arena's extent is read anew for each generation.
  absl::Status SetUpJob(const runtime::AttachedJob& job) override {
    has_job_ = true;
    return copies_->SetUpJob(job.plan);
  }
  void EndJob() override {
    has_job_ = false;
    copies_->EndJob();
  }
  absl::Status PrepareGeneration() override { return copies_->PrepareGeneration(); }

  void Observe() override {
    std::vector<v1::GpuReadings> read;
    if (has_job_) read = read_gpus_();
    MutexLock lock(mutex_);
    gpus_ = std::move(read);
  }
  void FillStats(v1::DeviceStats* stats) override {
    runtime::FillProcessStats(stats);
    copies_->FillStats(stats);
    MutexLock lock(mutex_);
    for (const v1::GpuReadings& gpu : gpus_) *stats->add_gpus() = gpu;
  }

 private:
  CopyService* const copies_;
  const GpuReader read_gpus_;
  std::atomic<bool> has_job_ = false;
  Mutex mutex_;
  std::vector<v1::GpuReadings> gpus_ ABSL_GUARDED_BY(mutex_);  // as last read
};

absl::Status Profile(runtime::ProgramContext& context) {
  Copies all;
  for (const plan::DeviceSpec& device : context.devices) all.devices.push_back(device.ordinal);
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<CopyService> copies,
                           CopyService::Open(context, all));
  HARMONY_RETURN_IF_ERROR(copies->engine().BeginJob(plan::Plan()));
  return AnswerLinkProfile(context.profile_request, context.devices, copies->engine());
}

absl::Status Serve(runtime::ProgramContext& context, runtime::TerminationSignals& signals) {
  if (!context.profile_request.empty()) return Profile(context);
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<CopyService> copies,
                           CopyService::Open(context, Copies::OfSwapper(context.devices)));
  SwapperHandler handler(copies.get(), OpenGpuReader(context));
  runtime::SegmentSemaphores semaphores(&context.segment);
  std::vector<runtime::LaneDefinition> lanes;
  copies->AddLanes(&lanes);
  runtime::AttachedOptions options = context.attached_options();
  options.role = runtime::AttachedRole::kSwapper;
  return runtime::ServeUntilStopped(options, std::move(lanes), &semaphores, &handler, signals);
}

}  // namespace
}  // namespace harmony::swapper

int main(int argc, char** argv) {
  return harmony::runtime::RunProgram(argc, argv, {.name = "harmony-swapper"},
                                      harmony::swapper::Serve);
}
