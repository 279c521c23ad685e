#include "worker/profile/serve_profile.h"

#include <utility>

#include "common/base/status.h"
#include "common/io/file.h"
#include "common/runtime/profile_call.h"
#include "worker/profile/host_profiler.h"
#include "worker/profile/layer_profiler.h"
#include "worker/profile/versions.h"
#include "worker/service/device_backends.h"

namespace harmony::worker {
namespace {

using Part = profile::ProfileRequest::Part;

constexpr Nanos kPartnersDeadline = Seconds(120);
constexpr runtime::RepeatLimits kTogetherRepeats{5, 1000, Seconds(1)};
constexpr runtime::RepeatLimits kQuickTogetherRepeats{3, 1000, Millis(600)};

absl::StatusOr<LayerProfiler> ProfilerOf(const runtime::ProgramContext& context, int device,
                                         const runtime::ProfileCall& call) {
  const plan::DeviceSpec& spec = context.devices[static_cast<size_t>(device)];
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBackend> backend, OpenBackend(context, spec));
  return LayerProfiler::Create(spec, std::move(backend), call);
}

// Each worker's semaphore (of its compute lane): 1 when it is ready, 2 when it has measured.
class Partners {
 public:
  Partners(const runtime::ProgramContext& context, int device)
      : context_(context), table_(static_cast<int>(context.devices.size())), device_(device) {}

  void Signal(uint64_t value) { SemaphoreOf(device_).Signal(value); }
  bool AllHave(uint64_t value) const {
    for (int device = 0; device < table_.num_devices(); ++device) {
      if (SemaphoreOf(device).value() < value) return false;
    }
    return true;
  }
  absl::Status WaitForAll(uint64_t value) const {
    for (int device = 0; device < table_.num_devices(); ++device) {
      HARMONY_RETURN_IF_ERROR_CTX(
          SemaphoreOf(device).WaitFor(value, context_.segment.Guard(kProfileGeneration),
                                      kPartnersDeadline),
          absl::StrCat("waiting for the worker of device ", device));
    }
    return absl::OkStatus();
  }

 private:
  ipc::TimelineSemaphore SemaphoreOf(int device) const {
    const int index = table_.IndexOf({command::LaneKind::kCompute, device});
    return context_.segment.Semaphore(kProfileGeneration, static_cast<uint32_t>(index));
  }

  const runtime::ProgramContext& context_;
  const command::LaneTable table_;
  const int device_;
};

// Runs until all others have measured, too: nobody is to measure half alone.
absl::StatusOr<double> MeasureTogether(const runtime::ProgramContext& context, int device,
                                       const runtime::ProfileCall& call) {
  HARMONY_ASSIGN_OR_RETURN(LayerProfiler profiler, ProfilerOf(context, device, call));
  HARMONY_RETURN_IF_ERROR(
      profiler.PrepareLayer(call.request.layer, call.request.samples, /*with_forward=*/true));
  Partners partners(context, device);
  HARMONY_RETURN_IF_ERROR(profiler.RunOnce());
  partners.Signal(1);
  HARMONY_RETURN_IF_ERROR(partners.WaitForAll(1));
  HARMONY_ASSIGN_OR_RETURN(
      const profile::Measured seconds,
      profiler.Repeat(call.request.quick ? kQuickTogetherRepeats : kTogetherRepeats,
                      [&] { return profiler.RunOnce(); }));
  partners.Signal(2);
  while (!partners.AllHave(2)) HARMONY_RETURN_IF_ERROR(profiler.RunOnce());
  return seconds.median;
}

absl::StatusOr<profile::Profile> Measure(runtime::ProgramContext& context, int device,
                                         const runtime::ProfileCall& call) {
  const Part part = call.request.part;
  if (device < 0 && (part == Part::kLayers || part == Part::kTogether)) {
    return absl::InvalidArgumentError("--device host has no layers to measure");
  }
  profile::Profile profile;
  profile.devices.resize(1);
  switch (part) {
    case Part::kVersions:
      profile.versions = MeasuringVersions();
      break;
    case Part::kLayers: {
      HARMONY_ASSIGN_OR_RETURN(LayerProfiler profiler, ProfilerOf(context, device, call));
      HARMONY_ASSIGN_OR_RETURN(profile.devices[0].layers, profiler.MeasureAll());
      break;
    }
    case Part::kTogether: {
      HARMONY_ASSIGN_OR_RETURN(profile.devices[0].together, MeasureTogether(context, device, call));
      break;
    }
    case Part::kHost: {
      HARMONY_ASSIGN_OR_RETURN(
          profile.host, MeasureHost(context.segment, call, io::ParentDirectory(call.request.output),
                                    plan::PacedHostRate(context.devices)));
      break;
    }
    case Part::kLinks:
      return absl::InvalidArgumentError("links are the swapper's to measure");
  }
  return profile;
}

}  // namespace

absl::Status ServeProfile(runtime::ProgramContext& context, int device) {
  return runtime::AnswerProfileCall(context.profile_request, [&](const runtime::ProfileCall& call) {
    return Measure(context, device, call);
  });
}

}  // namespace harmony::worker
