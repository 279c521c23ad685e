#include <algorithm>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

int ReceiveDescriptor(const std::string& word) {
  const Message message = Parent().Receive();
  if (message.ended || message.text != word || message.descriptor < 0) {
    Fail("no descriptor of the " + word);
  }
  return message.descriptor;
}

char* PlainPinnedMemory(uint64_t bytes) {
  if (Cuda().MemHostAlloc == nullptr) Fail("the driver lacks cuMemHostAlloc");
  void* memory = nullptr;
  Must(Cuda().MemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
  FillRandom(static_cast<char*>(memory), bytes, 1);
  return static_cast<char*>(memory);
}

// What is copied from the device is random, too.
void FillDevice(const Copies& copies) {
  for (uint64_t begin = 0; begin < copies.half; begin += kPinChunk) {
    const uint64_t offset = copies.half + begin;
    Must(Cuda().MemcpyHtoDAsync(copies.device + offset, copies.host + offset,
                                std::min(kPinChunk, copies.half - begin), copies.to_device),
         "cuMemcpyHtoDAsync");
  }
  Must(Cuda().StreamSynchronize(copies.to_device), "filling the device's memory");
}

}  // namespace

double FreeBytes(const Process& observer) { return Numbers(observer.Ask("?", "free"), 2)[0]; }

int MakeRegion(uint64_t bytes) {
  Process maker("maker", {std::to_string(bytes)});
  int descriptor = -1;
  maker.Expect("made", &descriptor);
  if (descriptor < 0) Fail("the maker sent no descriptor");
  maker.End();
  return descriptor;
}

SharedMemory::SharedMemory(uint64_t bytes) : bytes_(bytes), region_(MakeRegion(bytes)) {
  descriptor_ = NewHostMemory(bytes, Pages::kSmall);
  host_ = descriptor_ < 0 ? nullptr : MapHostMemory(descriptor_, bytes, Pages::kSmall);
  if (host_ == nullptr) Fail("no shared host memory");
  FillRandom(host_, bytes, 1);
}

void SharedMemory::GiveTo(const Process& process) const {
  process.Send("region", region_);
  process.Send("host", descriptor_);
}

Copies ReceiveCopies(uint64_t bytes, DeviceMemory device, PinnedMemory pinned) {
  Copies copies;
  copies.half = bytes / 2;
  const int region = ReceiveDescriptor("region");
  const int host = ReceiveDescriptor("host");
  UsePrimaryContext();
  copies.to_device = NewStream();
  copies.from_device = NewStream();
  copies.device = device == DeviceMemory::kRegion ? ImportRegion(region, bytes)
                                                  : Allocate(bytes, "memory to copy to");
  if (pinned == PinnedMemory::kShared) {
    copies.host = MapHostMemory(host, bytes, Pages::kSmall);
    if (copies.host == nullptr) Fail("mapping the shared host memory");
    Pin(copies.host, bytes);
  } else {
    copies.host = PlainPinnedMemory(bytes);
  }
  FillDevice(copies);
  return copies;
}

}  // namespace harmony::bench
