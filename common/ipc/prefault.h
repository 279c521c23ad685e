#pragma once

// Maps the pages of shared memory before their first use: each first touch by a process costs a
// fault, and these faults would otherwise all fall into the first step and the first updates.
// Contents never change. Where the kernel cannot do it (before Linux 5.14), nothing happens.

#include <cstddef>
#include <stop_token>
#include <thread>

#include "common/base/units.h"

namespace harmony::ipc {

// At once. [data, data + size) is writable memory; `data` is page-aligned.
void MapPages(std::byte* data, Bytes size, const std::stop_token& stop = {});

// In a thread of its own, at most for the life of the object.
class Prefault {
 public:
  // Begins with [data, data + size), which stays mapped until Stop; whatever was being done before
  // is given up.
  void Start(std::byte* data, Bytes size);
  void Stop();

 private:
  std::jthread thread_;
};

}  // namespace harmony::ipc
