#include "tests/fake_cuda/state.h"

namespace harmony::fake_cuda {
namespace {

thread_local std::vector<uint64_t> current_contexts;

}  // namespace

State& TheState() {
  static State* const state = new State;
  return *state;
}

uint64_t NewHandle() { return ++TheState().last_handle; }

uint64_t CurrentContext() { return current_contexts.empty() ? 0 : current_contexts.back(); }
void PushContext(uint64_t context) { current_contexts.push_back(context); }
void PopContext() {
  if (!current_contexts.empty()) current_contexts.pop_back();
}

// Clang does not see that table.cc holds the lock.
void AwaitProgress() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  State& state = TheState();
  state.progress.Wait(state.mutex);
}

bool IsDevice(CUdevice device) { return device >= 0 && device < TheState().config.devices; }

uint64_t TakenMemory(CUdevice device) {
  State& state = TheState();
  uint64_t taken = state.memory.Held(device);
  for (const auto& [handle, context] : state.contexts) {
    if (context.device == device) taken += state.config.context;
  }
  return taken;
}

}  // namespace harmony::fake_cuda
