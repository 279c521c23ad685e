#include "tests/fake_cuda/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/fake_cuda/checks.h"
#include "tests/fake_cuda/functions.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/state.h"

namespace harmony::fake_cuda {
namespace {

// The name of a memory file says whose memory it is to who imports it.
constexpr char kFileName[] = "fake_cuda:v1:device=%d";
constexpr char kFileLink[] = "/memfd:fake_cuda:v1:device=%d";

bool Aligned(uint64_t number) { return number % kGranularity == 0; }

int FileOfDevice(int device) {
  char name[64];
  snprintf(name, sizeof(name), kFileName, device);
  return memfd_create(name, MFD_CLOEXEC);
}

// -1: no memory of this driver.
int DeviceOfFile(int fd) {
  char link[128] = {};
  const ssize_t length =
      readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), link, sizeof(link) - 1);
  int device = -1;
  if (length <= 0 || sscanf(link, kFileLink, &device) != 1) return -1;
  return device;
}

// Whoever reads what nobody has written gets NaNs, not zeros.
bool FillWithPoison(int fd, size_t size) {
  if (posix_fallocate(fd, 0, static_cast<off_t>(size)) != 0) return false;
  void* const bytes = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (bytes == MAP_FAILED) return false;
  memset(bytes, kPoison, size);
  munmap(bytes, size);
  return true;
}

struct stat StatusOf(int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) Die(absl::StrCat("fstat: ", strerror(errno)));
  return status;
}

// Takes `fd`.
std::shared_ptr<Physical> MakePhysical(int fd, int device, bool exportable) {
  const struct stat status = StatusOf(fd);
  auto physical = std::make_shared<Physical>();
  physical->fd = fd;
  physical->file_system = status.st_dev;
  physical->inode = status.st_ino;
  physical->size = static_cast<size_t>(status.st_size);
  physical->device = device;
  physical->exportable = exportable;
  return physical;
}

// Null: this process does not have it yet.
std::shared_ptr<Physical> FindPhysical(uint64_t inode) {
  const auto& known = TheState().memory.by_inode;
  const auto it = known.find(inode);
  return it == known.end() ? nullptr : it->second.lock();
}

uint64_t AddHandle(std::shared_ptr<Physical> physical) {
  Memory& memory = TheState().memory;
  std::erase_if(memory.by_inode, [](const auto& entry) { return entry.second.expired(); });
  memory.by_inode[physical->inode] = physical;
  const uint64_t handle = NewHandle();
  memory.handles[handle] = std::move(physical);
  return handle;
}

void* Pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

void MakeInaccessible(uintptr_t address, size_t size) {
  if (mmap(Pointer(address), size, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    Die(absl::StrCat("mmap: ", strerror(errno)));
  }
}

// The mappings of which [address, address + size) consists; empty where it is not whole ones.
std::vector<std::pair<uintptr_t, Mapping*>> WholeMappings(uintptr_t address, size_t size) {
  std::vector<std::pair<uintptr_t, Mapping*>> found;
  uintptr_t at = address;
  while (at < address + size) {
    const auto it = TheState().memory.mappings.find(at);
    if (it == TheState().memory.mappings.end()) return {};
    found.emplace_back(at, &it->second);
    at += it->second.size;
  }
  if (at != address + size) found.clear();
  return found;
}

// The CPU is the devices here: it may do what any of them may.
int Protection(const Mapping& mapping) {
  int protection = PROT_NONE;
  for (const auto& [device, access] : mapping.access) {
    if (access != CU_MEM_ACCESS_FLAGS_PROT_NONE) protection |= PROT_READ;
    if (access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_WRITE;
  }
  return protection;
}

CUresult CheckAccess(const CUmemAccessDesc& wanted, const Mapping& mapping) {
  if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !IsDevice(wanted.location.id)) {
    return Refuse(CUDA_ERROR_INVALID_DEVICE,
                  absl::StrCat("cuMemSetAccess: no device ", wanted.location.id));
  }
  if (wanted.location.id != mapping.physical->device && !TheState().config.peers) {
    return Refuse(CUDA_ERROR_INVALID_DEVICE,
                  absl::StrCat("cuMemSetAccess: device ", wanted.location.id,
                               " is no peer of device ", mapping.physical->device));
  }
  return CUDA_SUCCESS;
}

bool Overlap(uintptr_t a, size_t a_size, uintptr_t b, size_t b_size) {
  return a < b + b_size && b < a + a_size;
}

}  // namespace

Physical::~Physical() { close(fd); }

uint64_t Memory::Held(int device) const {
  uint64_t held = 0;
  for (const auto& [inode, weak] : by_inode) {
    const std::shared_ptr<Physical> physical = weak.lock();
    if (physical != nullptr && physical->device == device) held += physical->size;
  }
  return held;
}

CUresult MemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                     CUmemAllocationGranularity_flags) {
  if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult MemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                   const CUmemAllocationProp* prop, unsigned long long flags) {
  if (handle == nullptr || prop == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, "cuMemCreate: only pinned memory of a device");
  }
  const int device = prop->location.id;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (size == 0 || !Aligned(size)) {
    return Refuse(CUDA_ERROR_INVALID_VALUE,
                  absl::StrCat("cuMemCreate: ", size, " is no multiple of ", kGranularity));
  }
  if (TakenMemory(device) + size > TheState().config.memory) {
    return Refuse(CUDA_ERROR_OUT_OF_MEMORY,
                  absl::StrCat("cuMemCreate: ", size, " bytes wanted, ", TakenMemory(device),
                               " of ", TheState().config.memory, " taken"));
  }
  const int fd = FileOfDevice(device);
  if (fd < 0 || !FillWithPoison(fd, size)) {
    if (fd >= 0) close(fd);
    return Refuse(CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate: this machine has no memory left");
  }
  std::shared_ptr<Physical> physical = MakePhysical(
      fd, device, (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0);
  *handle = AddHandle(std::move(physical));
  return CUDA_SUCCESS;
}

CUresult MemRelease(CUmemGenericAllocationHandle handle) {
  return TheState().memory.handles.erase(handle) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult MemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                    CUmemAllocationHandleType type, unsigned long long flags) {
  Memory& memory = TheState().memory;
  const auto it = memory.handles.find(handle);
  if (it == memory.handles.end() || shareable == nullptr || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !it->second->exportable) {
    return Refuse(CUDA_ERROR_INVALID_VALUE,
                  "cuMemExportToShareableHandle: cuMemCreate was not asked for descriptors");
  }
  const int fd = fcntl(it->second->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(shareable) = fd;
  return CUDA_SUCCESS;
}

CUresult MemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                      CUmemAllocationHandleType type) {
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  const int device = DeviceOfFile(fd);
  if (!IsDevice(device)) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, absl::StrCat("cuMemImportFromShareableHandle: ", fd,
                                                         " is no memory of a device here"));
  }
  std::shared_ptr<Physical> physical = FindPhysical(StatusOf(fd).st_ino);
  if (physical == nullptr) {
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    physical = MakePhysical(own, device, true);
  }
  *handle = AddHandle(std::move(physical));
  return CUDA_SUCCESS;
}

CUresult MemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr,
                           unsigned long long flags) {
  const bool power = (alignment & (alignment - 1)) == 0;
  if (ptr == nullptr || size == 0 || !Aligned(size) || !power || flags != 0) {
    return Refuse(CUDA_ERROR_INVALID_VALUE,
                  absl::StrCat("cuMemAddressReserve: size ", size, ", alignment ", alignment));
  }
  if (alignment < kGranularity) alignment = kGranularity;
  void* const begin = mmap(nullptr, size + alignment, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t aligned = (first + alignment - 1) / alignment * alignment;
  if (aligned > first) munmap(begin, aligned - first);
  munmap(Pointer(aligned + size), first + alignment - aligned);
  TheState().memory.reservations[aligned] = size;
  *ptr = aligned;
  return CUDA_SUCCESS;
}

CUresult MemAddressFree(CUdeviceptr ptr, size_t size) {
  Memory& memory = TheState().memory;
  const auto it = memory.reservations.find(ptr);
  if (it == memory.reservations.end() || it->second != size) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree: not what was reserved");
  }
  const auto mapped = memory.mappings.lower_bound(ptr);
  if (mapped != memory.mappings.end() && mapped->first < ptr + size) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree: memory is still mapped there");
  }
  munmap(Pointer(ptr), size);
  memory.reservations.erase(it);
  return CUDA_SUCCESS;
}

CUresult MemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                unsigned long long flags) {
  Memory& memory = TheState().memory;
  const auto physical = memory.handles.find(handle);
  if (physical == memory.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (flags != 0 || offset != 0 || size == 0 || !Aligned(ptr) || !Aligned(size) ||
      size > physical->second->size) {
    return Refuse(CUDA_ERROR_INVALID_VALUE,
                  absl::StrCat("cuMemMap: ", size, " bytes from ", offset, " of ",
                               physical->second->size, " at 0x", absl::Hex(ptr)));
  }
  auto reserved = memory.reservations.upper_bound(ptr);
  if (reserved == memory.reservations.begin() ||
      (--reserved, ptr + size > reserved->first + reserved->second)) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap: addresses that are not reserved");
  }
  for (const auto& [begin, mapping] : memory.mappings) {
    if (Overlap(begin, mapping.size, ptr, size)) return CUDA_ERROR_ALREADY_MAPPED;
  }
  if (mmap(Pointer(ptr), size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->second->fd, 0) ==
      MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory.mappings[ptr] = Mapping{size, physical->second, {}};
  return CUDA_SUCCESS;
}

CUresult MemUnmap(CUdeviceptr ptr, size_t size) {
  const auto whole = WholeMappings(ptr, size);
  if (whole.empty()) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, "cuMemUnmap: not whole mappings");
  }
  DieIfInUse(Pointer(ptr), size, "cuMemUnmap");
  MakeInaccessible(ptr, size);
  for (const auto& [begin, mapping] : whole) TheState().memory.mappings.erase(begin);
  return CUDA_SUCCESS;
}

CUresult MemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  const auto whole = WholeMappings(ptr, size);
  if (whole.empty() || desc == nullptr || count == 0) {
    return Refuse(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess: not whole mappings");
  }
  for (const auto& [begin, mapping] : whole) {
    for (size_t i = 0; i < count; ++i) {
      const CUresult allowed = CheckAccess(desc[i], *mapping);
      if (allowed != CUDA_SUCCESS) return allowed;
    }
  }
  for (const auto& [begin, mapping] : whole) {
    for (size_t i = 0; i < count; ++i) mapping->access[desc[i].location.id] = desc[i].flags;
    if (mprotect(Pointer(begin), mapping->size, Protection(*mapping)) != 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
  }
  return CUDA_SUCCESS;
}

CUresult MemHostRegister(void* p, size_t size, unsigned int flags) {
  constexpr unsigned int kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (p == nullptr || size == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  Memory& memory = TheState().memory;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  for (const auto& [other, registration] : memory.registrations) {
    if (Overlap(other, registration.size, begin, size)) {
      return Refuse(
          CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
          absl::StrCat("cuMemHostRegister: ", FormatRange(p, size), " overlaps ",
                       FormatRange(Pointer(other), registration.size), ", which is registered"));
    }
  }
  if (!IsWritable(p, size)) {
    return Refuse(
        CUDA_ERROR_INVALID_VALUE,
        absl::StrCat("cuMemHostRegister: ", FormatRange(p, size), " is not mapped, or read-only"));
  }
  memory.registrations[begin] = Registration{
      size, CurrentContext(), (flags & CU_MEMHOSTREGISTER_PORTABLE) != 0, FindPlaces(p, size)};
  return CUDA_SUCCESS;
}

CUresult MemHostUnregister(void* p) {
  Memory& memory = TheState().memory;
  const auto it = memory.registrations.find(reinterpret_cast<uintptr_t>(p));
  if (it == memory.registrations.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  DieIfInUse(p, it->second.size, "cuMemHostUnregister");
  memory.registrations.erase(it);
  return CUDA_SUCCESS;
}

}  // namespace harmony::fake_cuda
