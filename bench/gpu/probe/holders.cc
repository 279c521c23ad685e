#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/kernels.h"
#include "bench/gpu/probe/libraries.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

uint64_t BytesOf(const Arguments& arguments) {
  if (arguments.empty()) Fail("a role without a size");
  return strtoull(arguments[0].c_str(), nullptr, 10);
}

bool HasContext() {
  CUcontext context = nullptr;
  if (Cuda().CtxGetCurrent != nullptr) Must(Cuda().CtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context != nullptr) return true;
  unsigned flags = 0;
  int active = 0;
  if (Cuda().DevicePrimaryCtxGetState != nullptr) {
    Must(Cuda().DevicePrimaryCtxGetState(TheDevice(), &flags, &active),
         "cuDevicePrimaryCtxGetState");
  }
  return active != 0;
}

void Copy(CUdeviceptr device, char* host, uint64_t bytes, bool to_device, CUstream stream) {
  for (uint64_t begin = 0; begin < bytes; begin += kPinChunk) {
    const uint64_t size = bytes - begin < kPinChunk ? bytes - begin : kPinChunk;
    Must(to_device ? Cuda().MemcpyHtoDAsync(device + begin, host + begin, size, stream)
                   : Cuda().MemcpyDtoHAsync(host + begin, device + begin, size, stream),
         "a copy");
  }
  Must(Cuda().StreamSynchronize(stream), "a copy");
}

std::string ResidentMiB() {
  long total = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (file != nullptr) {
    if (fscanf(file, "%ld %ld", &total, &resident) != 2) resident = 0;
    fclose(file);
  }
  return std::to_string(resident * sysconf(_SC_PAGESIZE) / static_cast<long>(kMiB));
}

}  // namespace

void RunMaker(const Arguments& arguments) {
  const uint64_t bytes = BytesOf(arguments);
  const double begin = NowSeconds();
  Cuda();
  const double started = NowSeconds();
  const CUmemAllocationProp properties = RegionProperties();
  CUmemGenericAllocationHandle handle = 0;
  bool needed_context = false;
  CUresult result = Cuda().MemCreate(&handle, bytes, &properties, 0);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
    needed_context = true;
    UsePrimaryContext();
    result = Cuda().MemCreate(&handle, bytes, &properties, 0);
  }
  Must(result, "cuMemCreate");
  const double created = NowSeconds();
  int descriptor = -1;
  Must(Cuda().MemExportToShareableHandle(&descriptor, handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
       "cuMemExportToShareableHandle");
  const double exported = NowSeconds();
  Parent().Send(Format("made %.9f %.9f %.9f %d %d", started - begin, created - started,
                       exported - created, HasContext() ? 1 : 0, needed_context ? 1 : 0),
                descriptor);
  // Until it is told to end: its parent looks at the device's free memory first.
  Parent().Receive();
}

void RunImporter(const Arguments& arguments) {
  const uint64_t bytes = BytesOf(arguments);
  // All of a large region is mapped, only its first GiB is looked at.
  const uint64_t looked_at = bytes < kGiB ? bytes : kGiB;
  const Message given = Parent().Receive();
  UsePrimaryContext();
  double import_seconds = 0, map_seconds = 0;
  const CUdeviceptr device = ImportRegion(given.descriptor, bytes, &import_seconds, &map_seconds);
  close(given.descriptor);
  const CUstream stream = NewStream();
  char* host = NewPinnedMemory(looked_at);
  Parent().Send(Format("ready %.9f %.9f", import_seconds, map_seconds));
  for (Message order = Parent().Receive(); !order.ended; order = Parent().Receive()) {
    const std::vector<std::string> words = Words(order.text);
    if (words.size() != 2) Fail("an importer cannot '" + order.text + "'");
    const uint64_t seed = strtoull(words[1].c_str(), nullptr, 10);
    if (words[0] == "write") {
      FillRandom(host, looked_at, seed);
      Copy(device, host, looked_at, true, stream);
      Parent().Send("written");
    } else {
      Copy(device, host, looked_at, false, stream);
      const uint64_t difference = FirstDifference(host, looked_at, seed);
      Parent().Send(difference == looked_at ? "checked 1" : "checked 0");
    }
  }
}

void RunObserver(const Arguments&) {
  UsePrimaryContext();
  Parent().Send("ready");
  for (Message order = Parent().Receive(); !order.ended; order = Parent().Receive()) {
    size_t free = 0, total = 0;
    Must(Cuda().MemGetInfo(&free, &total), "cuMemGetInfo");
    Parent().Send(Format("free %zu %zu", free, total));
  }
}

void RunContext(const Arguments& arguments) {
  const std::string sort = arguments.empty() ? "" : arguments[0];
  uint64_t own = 0;  // bytes that are not the context's
  const double begin = NowSeconds();
  if (sort == "created") {
    CUcontext context = nullptr;
    Must(Cuda().CtxCreate(&context, nullptr, 0, TheDevice()), "cuCtxCreate");
  } else {
    UsePrimaryContext();
  }
  const double made = NowSeconds();
  const CUstream stream = NewStream();
  if (sort == "copies") {
    const uint64_t bytes = RegionGranularity();
    const CUdeviceptr device = ImportRegion(MakeRegion(bytes), bytes);
    char* host = NewPinnedMemory(bytes);
    Copy(device, host, bytes, true, stream);
    Copy(device, host, bytes, false, stream);
    own = bytes;
  }
  if (sort == "kernel" || sort == "cublas") {
    own = 64 * kMiB;
    const CUdeviceptr memory = Allocate(own, "memory of a kernel");
    const char* error = LaunchFill(memory, own / 2, 1, stream);
    if (error != nullptr) Fail(std::string("a kernel: ") + error);
    if (sort == "cublas") {
      Blas* blas = new Blas;  // as long as the process
      const std::string missing = blas->Open(stream, memory + own / 2, own / 2);
      if (!missing.empty()) Fail(missing);
      error = blas->Product(memory, memory + 8 * kMiB, memory + 16 * kMiB, 1024, 1024, 1024);
      if (error != nullptr) Fail(error);
    }
    Must(Cuda().StreamSynchronize(stream), "a kernel");
  }
  Parent().Send(Format("ready %.9f %llu ", made - begin, static_cast<unsigned long long>(own)) +
                ResidentMiB());
  Parent().Receive();
}

void RunWatcher(const Arguments& arguments) {
  const uint64_t bytes = BytesOf(arguments);
  const uint64_t half = bytes / 2;
  const Copies copies = ReceiveCopies(bytes, DeviceMemory::kRegion, PinnedMemory::kShared);
  char* pattern = NewPinnedMemory(half);
  char* seen = NewPinnedMemory(half);
  FillRandom(pattern, half, 7);
  Parent().Send("ready");
  for (Message order = Parent().Receive(); !order.ended; order = Parent().Receive()) {
    if (order.text == "mark") {
      Copy(copies.device, pattern, half, true, copies.to_device);
      Parent().Send("marked");
      continue;
    }
    const std::vector<std::string> words = Words(order.text);
    if (words.size() != 2 || words[0] != "watch") Fail("a watcher cannot '" + order.text + "'");
    const double begin = NowSeconds();
    const double end = begin + strtod(words[1].c_str(), nullptr);
    int looks = 0;
    double first_change = -1;
    while (first_change < 0 && NowSeconds() < end) {
      Copy(copies.device, seen, half, false, copies.from_device);
      ++looks;
      if (memcmp(seen, pattern, half) != 0) first_change = NowSeconds() - begin;
    }
    Parent().Send(Format("watched %d %.6f", looks, first_change));
  }
}

}  // namespace harmony::bench
