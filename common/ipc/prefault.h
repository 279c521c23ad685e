#pragma once

// Maps the pages of shared memory before their first use: each first touch by a process costs a
// fault, and these faults would otherwise all fall into the first step and the first updates.
// Contents never change. Where the kernel cannot do it (before Linux 5.14), nothing happens.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/base/units.h"

namespace harmony::ipc {

// At once. [data, data + size) is writable memory; `data` is page-aligned. Returns false where
// there is no memory for them, or the kernel cannot.
bool MapPages(std::byte* data, Bytes size);

// In threads of its own, at most for the life of the object: a page that has yet to be found and
// zeroed takes a core longer than one that is there takes a driver to pin.
class Prefault {
 public:
  ~Prefault() { Stop(); }
  // Begins with [data, data + size), which stays mapped until Stop; whatever was being done before
  // is given up.
  void Start(std::byte* data, Bytes size);
  void Stop();

 private:
  std::atomic<int64_t> taken_ = 0;  // of the bytes, by the threads
  std::vector<std::jthread> threads_;
};

}  // namespace harmony::ipc
