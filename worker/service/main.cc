// harmony-worker: computes on one device, or (--device host) runs the optimizer and data loading.

#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>

#include "common/base/status.h"
#include "common/runtime/program.h"
#include "worker/profile/serve_profile.h"
#include "worker/service/serve.h"

namespace harmony::worker {
namespace {

absl::Status Serve(runtime::ProgramContext& context, runtime::TerminationSignals& signals) {
  if (!context.profile_request.empty()) {
    if (context.device == "host") return ServeProfile(context, -1);
    HARMONY_ASSIGN_OR_RETURN(const plan::DeviceSpec device, FindDevice(context));
    return ServeProfile(context, device.ordinal);
  }
  if (context.device == "host") return ServeHost(context, signals);
  return ServeDevice(context, signals);
}

}  // namespace
}  // namespace harmony::worker

int main(int argc, char** argv) {
  const int code = harmony::runtime::RunProgram(
      argc, argv, {.name = "harmony-worker", .has_device = true}, harmony::worker::Serve);
  // LibTorch would take its tables of operators apart, entry by entry: a third of all that a worker
  // without a job computes, while somebody waits for its end.
  spdlog::shutdown();
  std::fflush(nullptr);
  std::_Exit(code);
}
