#pragma once

// A piece of device memory, made or imported, as tests use it: mapped, and accessible by its
// device.

#include <cuda.h>

#include <cstddef>

#include "common/cuda/driver.h"
#include "gtest/gtest.h"

namespace harmony::fake_cuda {

inline const cuda::Driver& TheDriver() {
  static const cuda::Driver* const driver = *cuda::LoadDriver();
  return *driver;
}

inline CUmemAllocationProp PropertiesFor(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return properties;
}

inline CUmemAccessDesc AccessOf(int device, CUmemAccess_flags flags) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, flags};
}

class Region {
 public:
  explicit Region(size_t size, int device = 0) : size_(size) {
    const CUmemAllocationProp properties = PropertiesFor(device);
    EXPECT_EQ(TheDriver().MemCreate(&handle_, size, &properties, 0), CUDA_SUCCESS);
    Map(device);
  }
  static Region Import(int fd, size_t size, int device = 0) { return Region(fd, size, device); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    EXPECT_EQ(TheDriver().MemUnmap(address_, size_), CUDA_SUCCESS);
    EXPECT_EQ(TheDriver().MemAddressFree(address_, size_), CUDA_SUCCESS);
    EXPECT_EQ(TheDriver().MemRelease(handle_), CUDA_SUCCESS);
  }

  int Export() const {
    int fd = -1;
    EXPECT_EQ(TheDriver().MemExportToShareableHandle(&fd, handle_,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    return fd;
  }
  CUdeviceptr address() const { return address_; }
  unsigned char* bytes() const { return reinterpret_cast<unsigned char*>(address_); }
  size_t size() const { return size_; }

 private:
  Region(int fd, size_t size, int device) : size_(size) {
    void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    EXPECT_EQ(TheDriver().MemImportFromShareableHandle(&handle_, shareable,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_SUCCESS);
    Map(device);
  }
  void Map(int device) {
    const CUmemAccessDesc access = AccessOf(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    EXPECT_EQ(TheDriver().MemAddressReserve(&address_, size_, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(TheDriver().MemMap(address_, size_, 0, handle_, 0), CUDA_SUCCESS);
    EXPECT_EQ(TheDriver().MemSetAccess(address_, size_, &access, 1), CUDA_SUCCESS);
  }

  size_t size_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
};

}  // namespace harmony::fake_cuda
