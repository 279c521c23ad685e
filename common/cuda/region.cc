#include "common/cuda/region.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::cuda {
namespace {

CUmemAllocationProp ExportableMemoryOf(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

size_t SizeOf(Bytes bytes) { return static_cast<size_t>(bytes.count()); }

absl::Status CheckDevice(const Driver& driver, int ordinal, CUdevice& device) {
  int count = 0;
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGetCount(&count), "counting GPUs"));
  if (ordinal < 0 || ordinal >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no cuda:", ordinal, "; this machine has ",
                     count == 1 ? "cuda:0 only" : absl::StrCat("cuda:0 to cuda:", count - 1)));
  }
  HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGet(&device, ordinal), "opening a GPU"));
  for (const auto attribute : {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                               CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int supported = 0;
    HARMONY_RETURN_IF_ERROR(driver.Check(driver.DeviceGetAttribute(&supported, attribute, device),
                                         "asking what a GPU can do"));
    if (supported == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("cuda:", ordinal, " cannot share its memory between processes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ipc::UniqueFd> CreateRegion(const Driver& driver, int ordinal, Bytes size) {
  CUdevice device = 0;
  HARMONY_RETURN_IF_ERROR(CheckDevice(driver, ordinal, device));
  const CUmemAllocationProp properties = ExportableMemoryOf(device);
  size_t granularity = 0;
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.MemGetAllocationGranularity(&granularity, &properties,
                                                      CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                   "asking for the granularity of memory"));
  if (size <= Bytes() || SizeOf(size) % granularity != 0) {
    return absl::InvalidArgumentError(absl::StrCat("memory of cuda:", ordinal,
                                                   " comes in units of ", granularity,
                                                   " bytes, not ", FormatBytesExact(size)));
  }
  CUmemGenericAllocationHandle handle = 0;
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.MemCreate(&handle, SizeOf(size), &properties, 0),
                   absl::StrCat("taking ", FormatBytesExact(size), " of cuda:", ordinal)));
  int fd = -1;
  const CUresult exported =
      driver.MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  // The descriptor keeps the memory; an error of the release would leak it to the end of this
  // process, which is near.
  driver.MemRelease(handle);
  HARMONY_RETURN_IF_ERROR(driver.Check(exported, "exporting a GPU's memory"));
  return ipc::UniqueFd(fd);
}

absl::StatusOr<RegionMapping> RegionMapping::Map(const Driver& driver, int fd, Bytes size,
                                                 const std::vector<int>& accessors) {
  RegionMapping region(driver, size);
  // The driver takes a descriptor as a pointer of that value.
  HARMONY_RETURN_IF_ERROR(driver.Check(
      driver.MemImportFromShareableHandle(&region.handle_,
                                          reinterpret_cast<void*>(static_cast<uintptr_t>(fd)),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "importing a GPU's memory"));
  region.imported_ = true;
  HARMONY_RETURN_IF_ERROR(driver.Check(
      driver.MemAddressReserve(&region.address_, SizeOf(size), 0, 0, 0), "reserving addresses"));
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.MemMap(region.address_, SizeOf(size), 0, region.handle_, 0),
                   absl::StrCat("mapping ", FormatBytesExact(size), " of a GPU")));
  region.mapped_ = true;
  std::vector<CUmemAccessDesc> access;
  for (const int ordinal : accessors) {
    CUmemAccessDesc& each = access.emplace_back();
    each = {};
    each.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    each.location.id = ordinal;
    each.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.MemSetAccess(region.address_, SizeOf(size), access.data(), access.size()),
                   "making a GPU's memory accessible"));
  return region;
}

RegionMapping::RegionMapping(RegionMapping&& other) noexcept
    : driver_(other.driver_),
      size_(other.size_),
      handle_(other.handle_),
      address_(std::exchange(other.address_, 0)),
      imported_(std::exchange(other.imported_, false)),
      mapped_(std::exchange(other.mapped_, false)) {}

RegionMapping::~RegionMapping() {
  if (mapped_) driver_->MemUnmap(address_, SizeOf(size_));
  if (address_ != 0) driver_->MemAddressFree(address_, SizeOf(size_));
  if (imported_) driver_->MemRelease(handle_);
}

}  // namespace harmony::cuda
