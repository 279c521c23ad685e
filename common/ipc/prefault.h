#pragma once

// Maps the pages of shared memory before their first use. They are allocated already (the extent of
// a job is), but each first touch by a process costs a fault, and these faults would otherwise all
// fall into the first step and the first updates.

#include <cstddef>
#include <thread>

#include "common/base/units.h"

namespace harmony {

// Works in a thread of its own, at most for the life of the object. Contents never change. Where
// the kernel cannot do it (before Linux 5.14), nothing happens.
class Prefault {
 public:
  // Begins with [data, data + size), writable memory that stays mapped until Stop; whatever was
  // being done before is given up. `data` is page-aligned.
  void Start(std::byte* data, Bytes size);
  void Stop();

 private:
  std::jthread thread_;
};

}  // namespace harmony
