#include "tests/fake_cuda/stream.h"

#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/fake_cuda/checks.h"
#include "tests/fake_cuda/functions.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/state.h"

namespace harmony::fake_cuda {
namespace {

// What a stream's thread needs while it does not hold the lock.
struct Pace {
  uint64_t seed = 0;
  uint64_t max_delay_us = 0;
  uint64_t stream = 0;
  uint64_t operation = 0;

  // `step`: of the operation. The same in every run.
  void Wait(uint64_t step) const {
    if (max_delay_us == 0) return;
    const uint64_t draw = Philox4x32(seed, operation * 2 + step, stream)[0];
    std::this_thread::sleep_for(std::chrono::microseconds(draw % (max_delay_us + 1)));
  }
};

// The destination holds poison for a while, so that who reads or writes it too early is found out.
void Execute(const Operation& operation, const Pace& pace) {
  pace.Wait(0);
  if (operation.to == nullptr) return;
  memset(operation.to, kPoison, operation.bytes);
  pace.Wait(1);
  if (operation.from == nullptr) {
    memset(operation.to, operation.value, operation.bytes);
  } else {
    memcpy(operation.to, operation.from, operation.bytes);
  }
}

void Run(const std::shared_ptr<Stream>& stream) {
  State& state = TheState();
  MutexLock lock(state.mutex);
  while (true) {
    while (stream->queue.empty() && !stream->destroyed) stream->changed.Wait(state.mutex);
    if (stream->queue.empty()) return;
    // Others only append to the queue, which leaves this one where it is.
    const Operation& operation = stream->queue.front();
    const Pace pace{state.config.seed, state.config.max_delay_us, stream->number, stream->done};
    lock.Unlock();
    Execute(operation, pace);
    lock.Lock();
    if (operation.event != nullptr) {
      operation.event->reached = operation.record;
      operation.event->time = std::chrono::steady_clock::now();
    }
    ++stream->done;
    stream->queue.pop_front();
    state.progress.NotifyAll();
  }
}

void Enqueue(Stream& stream, Operation operation) {
  NoteEnqueued(stream, operation);
  stream.queue.push_back(std::move(operation));
  ++stream.enqueued;
  stream.changed.NotifyOne();
}

CUresult WaitFor(const std::shared_ptr<Stream>& stream) {
  State& state = TheState();
  const uint64_t enqueued = stream->enqueued;
  const Clock seen = stream->actor.clock;
  while (stream->done < enqueued) {
    // Its queue may be dropped meanwhile, by another thread.
    const auto context = state.contexts.find(stream->context);
    if (context == state.contexts.end()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context->second.broken != CUDA_SUCCESS) return context->second.broken;
    AwaitProgress();
  }
  NoteSeen(seen);
  return CUDA_SUCCESS;
}

// Null, and the answer in `result`, where there is no such stream or its context is gone.
std::shared_ptr<Stream> Find(CUstream handle, const char* function, CUresult& result) {
  State& state = TheState();
  const std::shared_ptr<Stream>* const stream = FindHandle(state.streams, handle);
  if (stream == nullptr) {
    result = Refuse(CUDA_ERROR_INVALID_HANDLE,
                    absl::StrCat(function, ": no such stream (the default one is not supported)"));
    return nullptr;
  }
  result = state.contexts.at((*stream)->context).broken;
  return result == CUDA_SUCCESS ? *stream : nullptr;
}

std::shared_ptr<Event> Find(CUevent handle, const char* function, CUresult& result) {
  State& state = TheState();
  const std::shared_ptr<Event>* const event = FindHandle(state.events, handle);
  if (event == nullptr) {
    result = Refuse(CUDA_ERROR_INVALID_HANDLE, absl::StrCat(function, ": no such event"));
    return nullptr;
  }
  result = state.contexts.at((*event)->context).broken;
  return result == CUDA_SUCCESS ? *event : nullptr;
}

// Of copies between host and device.
CUresult EnqueueHostCopy(const Operation& operation, const void* host, CUstream handle) {
  CUresult result = CUDA_SUCCESS;
  const std::shared_ptr<Stream> stream = Find(handle, operation.function, result);
  if (stream == nullptr || operation.bytes == 0) return result;
  const bool to_device = host == operation.from;
  const void* const device = to_device ? operation.to : operation.from;
  if (!IsDeviceRange(device, operation.bytes, to_device, stream->context, operation.function)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const HostRange range =
      ClassifyHostRange(host, operation.bytes, stream->context, operation.function);
  const bool staged = range == HostRange::kPageable && TheState().config.stage_pageable;
  if (range != HostRange::kPinned && !staged) return CUDA_ERROR_INVALID_VALUE;
  Enqueue(*stream, operation);
  return staged ? WaitFor(stream) : CUDA_SUCCESS;
}

}  // namespace

std::string Describe(const Operation& operation) {
  std::string text = absl::StrCat(operation.function, " of ", operation.bytes, " bytes");
  if (operation.from != nullptr) {
    absl::StrAppend(&text, " from 0x", absl::Hex(reinterpret_cast<uintptr_t>(operation.from)));
  }
  if (operation.to != nullptr) {
    absl::StrAppend(&text, " to 0x", absl::Hex(reinterpret_cast<uintptr_t>(operation.to)));
  }
  return text;
}

CUresult StreamCreate(CUstream* handle, unsigned int flags) {
  if (handle == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = TheState();
  auto stream = std::make_shared<Stream>();
  stream->number = ++state.streams_made;
  stream->context = CurrentContext();
  const uint64_t number = NewHandle();
  state.streams[number] = stream;
  // Detached: it ends when the stream is destroyed, or with the process.
  std::thread(Run, stream).detach();
  *handle = reinterpret_cast<CUstream>(number);
  return CUDA_SUCCESS;
}

CUresult StreamDestroy(CUstream handle) {
  CUresult result = CUDA_SUCCESS;
  const std::shared_ptr<Stream> stream = Find(handle, "cuStreamDestroy", result);
  if (stream == nullptr) return result;
  DieIfBusy(*stream, "cuStreamDestroy");
  stream->destroyed = true;
  stream->changed.NotifyOne();
  TheState().streams.erase(NumberOf(handle));
  return CUDA_SUCCESS;
}

CUresult StreamSynchronize(CUstream handle) {
  CUresult result = CUDA_SUCCESS;
  const std::shared_ptr<Stream> stream = Find(handle, "cuStreamSynchronize", result);
  if (stream == nullptr) return result;
  return WaitFor(stream);
}

CUresult EventCreate(CUevent* handle, unsigned int flags) {
  constexpr unsigned int kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if (handle == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>();
  event->context = CurrentContext();
  event->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  const uint64_t number = NewHandle();
  TheState().events[number] = std::move(event);
  *handle = reinterpret_cast<CUevent>(number);
  return CUDA_SUCCESS;
}

CUresult EventDestroy(CUevent handle) {
  CUresult result = CUDA_SUCCESS;
  if (Find(handle, "cuEventDestroy", result) == nullptr) return result;
  TheState().events.erase(NumberOf(handle));
  return CUDA_SUCCESS;
}

CUresult EventRecord(CUevent handle, CUstream stream_handle) {
  CUresult result = CUDA_SUCCESS;
  const std::shared_ptr<Event> event = Find(handle, "cuEventRecord", result);
  if (event == nullptr) return result;
  const std::shared_ptr<Stream> stream = Find(stream_handle, "cuEventRecord", result);
  if (stream == nullptr) return result;
  if (event->context != stream->context) {
    return Refuse(CUDA_ERROR_INVALID_HANDLE,
                  "cuEventRecord: the event and the stream are of different contexts");
  }
  Operation operation;
  operation.function = "cuEventRecord";
  operation.event = event;
  operation.record = ++event->recorded;
  Enqueue(*stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult EventQuery(CUevent handle) {
  CUresult result = CUDA_SUCCESS;
  const std::shared_ptr<Event> event = Find(handle, "cuEventQuery", result);
  if (event == nullptr) return result;
  if (event->reached < event->recorded) return CUDA_ERROR_NOT_READY;
  NoteSeen(event->clock);
  return CUDA_SUCCESS;
}

CUresult EventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
  const std::shared_ptr<Event> start = Find(start_handle, "cuEventElapsedTime", result);
  if (start == nullptr) return result;
  const std::shared_ptr<Event> end = Find(end_handle, "cuEventElapsedTime", result);
  if (end == nullptr) return result;
  for (const Event* event : {start.get(), end.get()}) {
    if (!event->timing || event->recorded == 0) {
      return Refuse(CUDA_ERROR_INVALID_HANDLE,
                    "cuEventElapsedTime: an event without timing, or never recorded");
    }
  }
  if (start->reached < start->recorded || end->reached < end->recorded) {
    return CUDA_ERROR_NOT_READY;
  }
  NoteSeen(start->clock);
  NoteSeen(end->clock);
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return CUDA_SUCCESS;
}

CUresult MemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  Operation operation;
  operation.function = "cuMemcpyHtoDAsync";
  operation.to = reinterpret_cast<void*>(to);
  operation.from = from;
  operation.bytes = bytes;
  return EnqueueHostCopy(operation, from, stream);
}

CUresult MemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Operation operation;
  operation.function = "cuMemcpyDtoHAsync";
  operation.to = to;
  operation.from = reinterpret_cast<const void*>(from);
  operation.bytes = bytes;
  return EnqueueHostCopy(operation, to, stream);
}

CUresult MemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  Operation operation;
  operation.function = "cuMemcpyDtoDAsync";
  operation.to = reinterpret_cast<void*>(to);
  operation.from = reinterpret_cast<const void*>(from);
  operation.bytes = bytes;
  CUresult result = CUDA_SUCCESS;
  const std::shared_ptr<Stream> stream = Find(handle, operation.function, result);
  if (stream == nullptr || bytes == 0) return result;
  if (!IsDeviceRange(operation.to, bytes, true, stream->context, operation.function) ||
      !IsDeviceRange(operation.from, bytes, false, stream->context, operation.function)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (to < from + bytes && from < to + bytes) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, "cuMemcpyDtoDAsync: source and destination overlap");
  }
  Enqueue(*stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult MemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle) {
  Operation operation;
  operation.function = "cuMemsetD8Async";
  operation.to = reinterpret_cast<void*>(to);
  operation.bytes = bytes;
  operation.value = value;
  CUresult result = CUDA_SUCCESS;
  const std::shared_ptr<Stream> stream = Find(handle, operation.function, result);
  if (stream == nullptr || bytes == 0) return result;
  if (!IsDeviceRange(operation.to, bytes, true, stream->context, operation.function)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Enqueue(*stream, std::move(operation));
  return CUDA_SUCCESS;
}

}  // namespace harmony::fake_cuda
