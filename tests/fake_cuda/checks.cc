#include "tests/fake_cuda/checks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/state.h"

namespace harmony::fake_cuda {
namespace {

bool Overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(a);
  const uintptr_t second = reinterpret_cast<uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

bool Uses(const Operation& operation, const void* begin, size_t bytes) {
  return (operation.to != nullptr && Overlap(operation.to, operation.bytes, begin, bytes)) ||
         (operation.from != nullptr && Overlap(operation.from, operation.bytes, begin, bytes));
}

// False: no context is broken.
bool WaitForBroken() {
  State& state = TheState();
  std::vector<std::shared_ptr<Stream>> streams;
  bool broken = false;
  for (const auto& [handle, context] : state.contexts) {
    if (context.broken == CUDA_SUCCESS) continue;
    broken = true;
    for (const auto& [number, stream] : state.streams) {
      if (stream->context == handle) streams.push_back(stream);
    }
  }
  for (const std::shared_ptr<Stream>& stream : streams) {
    while (!stream->queue.empty()) AwaitProgress();
  }
  return broken;
}

// Null: the device may do it; otherwise what is missing.
const char* WhatIsMissing(const Mapping& mapping, int device, bool write) {
  const auto it = mapping.access.find(device);
  if (it == mapping.access.end() || it->second == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
    return "without cuMemSetAccess for";
  }
  if (write && it->second != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return "read-only for";
  return nullptr;
}

}  // namespace

bool IsDeviceRange(const void* begin, size_t bytes, bool write, uint64_t context,
                   absl::string_view what) {
  State& state = TheState();
  const int device = state.contexts.at(context).device;
  const std::string range = absl::StrCat(what, ": device range ", FormatRange(begin, bytes));
  uintptr_t at = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t end = at + bytes;
  while (at < end) {
    const auto it = FindAround(state.memory.mappings, at);
    if (it == state.memory.mappings.end()) {
      Say(absl::StrCat(range, " is not mapped from 0x", absl::Hex(at), " on"));
      return false;
    }
    const char* const missing = WhatIsMissing(it->second, device, write);
    if (missing != nullptr) {
      Say(absl::StrCat(range, " is ", missing, " device ", device));
      return false;
    }
    at = it->first + it->second.size;
  }
  return true;
}

HostRange ClassifyHostRange(const void* begin, size_t bytes, uint64_t context,
                            absl::string_view what) {
  State& state = TheState();
  const std::string range = absl::StrCat(what, ": host range ", FormatRange(begin, bytes));
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
  int touched = 0;
  for (const auto& [at, registration] : state.memory.registrations) {
    if (!Overlap(begin, bytes, reinterpret_cast<const void*>(at), registration.size)) continue;
    ++touched;
    if (first < at || first + bytes > at + registration.size) continue;
    if (!registration.portable && registration.context != context) {
      Say(absl::StrCat(range,
                       " is not pinned for this context: registered in another, not "
                       "portable"));
      return HostRange::kWrong;
    }
    if (IsMapped(begin, bytes)) return HostRange::kPinned;
    Say(absl::StrCat(range, " is registered, but no longer mapped"));
    return HostRange::kWrong;
  }
  if (touched == 0 && state.config.stage_pageable) return HostRange::kPageable;
  if (touched == 0) Say(absl::StrCat(range, " is not pinned"));
  if (touched == 1) Say(absl::StrCat(range, " is not pinned as a whole"));
  if (touched > 1) Say(absl::StrCat(range, " spans two registrations"));
  return touched == 0 ? HostRange::kPageable : HostRange::kWrong;
}

bool IsMapped(const void* begin, size_t bytes) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(begin) + bytes;
  std::vector<unsigned char> resident((end - first + page - 1) / page);
  return mincore(reinterpret_cast<void*>(first), end - first, resident.data()) == 0;
}

void DieIfInUse(const void* begin, size_t bytes, absl::string_view what) {
  const bool broken = WaitForBroken();
  for (const auto& [handle, stream] : TheState().streams) {
    for (const Operation& operation : stream->queue) {
      if (!Uses(operation, begin, bytes)) continue;
      Die(absl::StrCat(what, " of ", FormatRange(begin, bytes), " while ", Describe(operation),
                       " of stream ", stream->number, " is not done"));
    }
  }
  if (!broken) NoteTakenAway(begin, bytes, what);
}

void DieIfBusy(const Stream& stream, absl::string_view what) {
  WaitForBroken();
  for (const Operation& operation : stream.queue) {
    if (operation.to == nullptr) continue;
    Die(absl::StrCat(what, " of stream ", stream.number, " while its ", Describe(operation),
                     " is not done"));
  }
}

}  // namespace harmony::fake_cuda
