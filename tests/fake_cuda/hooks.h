#pragma once

// What tests may tell the fake driver, beyond CUDA. It is opened like the real one, at run time, so
// these are found the same way: nothing links it.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace harmony::fake_cuda {

// Each may be called by any thread.
struct Hooks {
  // Puts another configuration (README.md) in place, counts calls from 0 again, and lets
  // cuInit(0) be tried anew. A wrong one aborts.
  void (*configure)(const char* text) = nullptr;
  // The CPU is about to use memory of a device or host memory that streams use, too. `what`: for
  // people, copied.
  void (*access)(const void* begin, size_t bytes, int write, const char* what) = nullptr;
  // All before release(key) is before all after an acquire(key) that comes later, in any thread,
  // and any process with the same shared=FILE. A release belongs before the operation that others
  // wait for, an acquire after the wait. A key for each semaphore.
  void (*release)(uint64_t key) = nullptr;
  void (*acquire)(uint64_t key) = nullptr;
};

// Null where libcuda.so.1 is not the fake one.
inline const Hooks* FindHooks() {
  static const Hooks* const found = []() -> const Hooks* {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || dlsym(library, "fake_cuda_configure") == nullptr) return nullptr;
    auto* const hooks = new Hooks;
    const auto find = [library](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    find("fake_cuda_configure", hooks->configure);
    find("fake_cuda_access", hooks->access);
    find("fake_cuda_release", hooks->release);
    find("fake_cuda_acquire", hooks->acquire);
    return hooks;
  }();
  return found;
}

}  // namespace harmony::fake_cuda
