#pragma once

// Streams: one thread each, which executes what is enqueued in order and late. The queues and
// events are under State::mutex; the bytes are moved without it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "tests/fake_cuda/races.h"

namespace harmony::fake_cuda {

struct Event {
  uint64_t context = 0;
  bool timing = true;
  // Numbers of records: the last one enqueued, the last one reached.
  uint64_t recorded = 0;
  uint64_t reached = 0;
  std::chrono::steady_clock::time_point time;
  Clock clock;  // Of the last record.
};

// A copy (`from` and `to`), a fill (`to` only) or the record of an event.
struct Operation {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  unsigned char value = 0;
  std::shared_ptr<Event> event;
  uint64_t record = 0;
  const char* function = "";
};

struct Stream {
  uint64_t number = 0;  // From 1 in each process, in the order of creation.
  uint64_t context = 0;
  std::deque<Operation> queue;  // The first one is running.
  uint64_t enqueued = 0;
  uint64_t done = 0;
  bool destroyed = false;
  CondVar changed;
  Actor actor;
};

// "cuMemcpyHtoDAsync of 4096 bytes from 0x7f.. to 0x7f..".
std::string Describe(const Operation& operation);

}  // namespace harmony::fake_cuda
