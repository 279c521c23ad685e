#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "common/runtime/lane_executor.h"
#include "common/runtime/program.h"
#include "harmony/v1/attach.pb.h"
#include "swapper/memory/host_arena.h"
#include "swapper/transfer/copy_engine.h"

namespace harmony::swapper {

// Whose copies a program carries out, and where.
struct Copies {
  // Those of devices with copies=worker are their workers', all others the swapper's.
  static Copies OfSwapper(const std::vector<plan::DeviceSpec>& devices);
  static Copies OfWorker(const plan::DeviceSpec& device);

  std::vector<int> devices;  // none: there is nothing to do
  // On GPUs in the context in which the process computes, else in one of their own.
  bool in_compute_context = false;
};

// The transfer lanes of a program that has attached: the engine, and what it has to do for a job.
// But for FillStats, all is for the service's thread, while no lane runs anything.
class CopyService {
 public:
  // Opens nothing where there is nothing to do. The context must outlive it. FailedPrecondition: a
  // region was not inherited, there is no driver, or this build is without CUDA.
  static absl::StatusOr<std::unique_ptr<CopyService>> Open(runtime::ProgramContext& context,
                                                           const Copies& copies);

  // The lanes, which call the engine; it must outlive them.
  void AddLanes(std::vector<runtime::LaneDefinition>* lanes);

  // See AttachedHandler. They end this process where a device is lost to it.
  absl::Status SetUpJob(const plan::Plan& plan);
  void EndJob();
  absl::Status PrepareGeneration();
  // What has been moved, and how punctually.
  void FillStats(v1::DeviceStats* stats) const;

  // REQUIRES: there is something to do.
  CopyEngine& engine() { return *engine_; }

 private:
  CopyService(runtime::ProgramContext& context, const Copies& copies)
      : copies_(copies),
        table_(static_cast<int>(context.devices.size())),
        arena_(&context.segment) {}

  absl::Status Run(const command::Command& command);
  void LogTraffic() const;

  const Copies copies_;
  const command::LaneTable table_;
  HostArena arena_;
  std::optional<CopyEngine> engine_;
};

}  // namespace harmony::swapper
