#pragma once

// cuBLAS and NVML, opened at run time. Their headers are not needed: what is used of them is
// declared in libraries.cc, as it has been since CUDA 12.

#include <cuda.h>

#include <cstdint>
#include <set>
#include <string>

namespace harmony::bench {

// Products of bf16 numbers, summed in fp32.
class Blas {
 public:
  // Searches the path of the settings, the loader's, that of the toolkit, and Python's packages.
  // Empty, or why there is none.
  std::string Open(CUstream stream, CUdeviceptr workspace, uint64_t workspace_bytes);
  // c[m, n] = a[m, k] b[k, n], all of bf16. Null, or what went wrong.
  const char* Product(CUdeviceptr c, CUdeviceptr a, CUdeviceptr b, int m, int n, int k) const;
  const std::string& path() const { return path_; }
  int version() const { return version_; }

 private:
  std::string path_;
  int version_ = 0;
  void* handle_ = nullptr;
  void* product_ = nullptr;
};

// What the driver tells about a device without a context. All answers are -1 or empty where it does
// not, as in some containers.
class Nvml {
 public:
  explicit Nvml(const std::string& pci_bus_id);

  bool works() const { return device_ != nullptr; }
  std::string driver_version() const;
  int pcie_generation(bool most) const;
  int pcie_width(bool most) const;
  // 1: on, 0: off.
  int mig() const;
  // Of processes with a context on the device, as NVML numbers them: in a container they may be
  // those of the host.
  std::set<unsigned> ProcessIds() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace harmony::bench
