#include "bench/gpu/probe/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/process.h"

namespace harmony::bench {

int NewHostMemory(uint64_t bytes, Pages pages) {
  const unsigned flags = MFD_CLOEXEC | (pages == Pages::kHugetlb ? MFD_HUGETLB : 0u);
  const int descriptor = memfd_create("probe", flags);
  if (descriptor < 0) return -1;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    close(descriptor);
    return -1;
  }
  return descriptor;
}

char* MapHostMemory(int descriptor, uint64_t bytes, Pages pages) {
  // Pages of hugetlb are reserved here, so a machine without them says so now and not by a signal.
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return nullptr;
  if (pages == Pages::kSmall) madvise(address, bytes, MADV_NOHUGEPAGE);
  if (pages == Pages::kTransparentHuge) madvise(address, bytes, MADV_HUGEPAGE);
  return static_cast<char*>(address);
}

void UnmapHostMemory(char* memory, uint64_t bytes) { munmap(memory, bytes); }

double HugeShare(const char* memory, uint64_t bytes) {
  std::ifstream maps("/proc/self/smaps");
  const unsigned long long wanted = reinterpret_cast<uintptr_t>(memory);
  bool within = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0, kibibytes = 0;
    if (sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      within = begin <= wanted && wanted < end;
    } else if (within && sscanf(line.c_str(), "ShmemPmdMapped: %llu", &kibibytes) == 1) {
      return static_cast<double>(kibibytes) * 1024 / static_cast<double>(bytes);
    }
  }
  return -1;
}

uint64_t RandomWord(uint64_t seed, uint64_t index) {
  uint64_t word = seed * 0xD1342543DE82EF95u + index * 0x9E3779B97F4A7C15u;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

void FillRandom(char* memory, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    const uint64_t word = RandomWord(seed, i);
    memcpy(memory + i * sizeof(word), &word, sizeof(word));
  }
}

uint64_t FirstDifference(const char* memory, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    const uint64_t word = RandomWord(seed, i);
    if (memcmp(memory + i * sizeof(word), &word, sizeof(word)) != 0) return i * sizeof(word);
  }
  return bytes;
}

void Pin(char* memory, uint64_t bytes, uint64_t chunk) {
  for (uint64_t begin = 0; begin < bytes; begin += chunk) {
    Must(Cuda().MemHostRegister(memory + begin, std::min(chunk, bytes - begin),
                                CU_MEMHOSTREGISTER_PORTABLE),
         "cuMemHostRegister");
  }
}

void Unpin(char* memory, uint64_t bytes, uint64_t chunk) {
  for (uint64_t begin = 0; begin < bytes; begin += chunk) {
    Must(Cuda().MemHostUnregister(memory + begin), "cuMemHostUnregister");
  }
}

char* NewPinnedMemory(uint64_t bytes) {
  const int descriptor = NewHostMemory(bytes, Pages::kSmall);
  char* memory = descriptor < 0 ? nullptr : MapHostMemory(descriptor, bytes, Pages::kSmall);
  if (memory == nullptr) Fail("no shared host memory");
  close(descriptor);
  FillRandom(memory, bytes, 99);
  Pin(memory, bytes);
  return memory;
}

CUmemAllocationProp RegionProperties() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = TheDevice();
  return properties;
}

uint64_t RegionGranularity() {
  const CUmemAllocationProp properties = RegionProperties();
  size_t granularity = 0;
  Must(Cuda().MemGetAllocationGranularity(&granularity, &properties,
                                          CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
       "cuMemGetAllocationGranularity");
  return granularity;
}

CUdeviceptr ImportRegion(int descriptor, uint64_t bytes, double* import_seconds,
                         double* map_seconds) {
  const double begin = NowSeconds();
  CUmemGenericAllocationHandle handle = 0;
  Must(Cuda().MemImportFromShareableHandle(
           &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor)),
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
       "cuMemImportFromShareableHandle");
  const double imported = NowSeconds();
  CUdeviceptr address = 0;
  Must(Cuda().MemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  Must(Cuda().MemMap(address, bytes, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access = {};
  access.location = RegionProperties().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Must(Cuda().MemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
  // The mapping keeps the memory; the handle is not needed any more.
  Must(Cuda().MemRelease(handle), "cuMemRelease");
  if (import_seconds != nullptr) *import_seconds = imported - begin;
  if (map_seconds != nullptr) *map_seconds = NowSeconds() - imported;
  return address;
}

}  // namespace harmony::bench
