#pragma once

// All that the fake driver of this process knows, under one lock. It lives until the process ends:
// the threads of its streams use it for as long.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "common/base/mutex.h"
#include "tests/fake_cuda/config.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/stream.h"

namespace harmony::fake_cuda {

struct Context {
  int device = 0;
  bool primary = false;
  int retained = 0;                // Of a primary one.
  CUresult broken = CUDA_SUCCESS;  // The error after which all calls in this context give it.
};

struct State {
  // Held during every call of the driver, and by streams between operations.
  Mutex mutex;
  // An operation of some stream has ended.
  CondVar progress;

  Config config;
  bool initialised = false;
  // Of who initialised it. Read without the lock, which a forked child may find held for ever.
  std::atomic<int> pid = 0;

  // Handles of all kinds are numbers that are never used twice, so that one that is destroyed or of
  // another kind is recognised.
  uint64_t last_handle = 0xFA4E0000;
  std::map<uint64_t, Context> contexts;
  std::map<uint64_t, std::shared_ptr<Stream>> streams;
  std::map<uint64_t, std::shared_ptr<Event>> events;
  uint64_t streams_made = 0;
  Memory memory;
};

State& TheState();

// Needs State::mutex, as all below.
uint64_t NewHandle();

template <typename Handle>
uint64_t NumberOf(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

// What `objects` has for a handle of cuda.h; null when it is not, or no longer, one of them.
template <typename Handle, typename Object>
Object* FindHandle(std::map<uint64_t, Object>& objects, Handle handle) {
  const auto it = objects.find(NumberOf(handle));
  return it == objects.end() ? nullptr : &it->second;
}

// The context that is current for this thread, 0: none. It may be destroyed.
uint64_t CurrentContext();
void PushContext(uint64_t context);
void PopContext();

// Until some operation of some stream has ended, or a context has broken.
void AwaitProgress();

bool IsDevice(CUdevice device);
// What this process has taken of a device.
uint64_t TakenMemory(CUdevice device);

}  // namespace harmony::fake_cuda
