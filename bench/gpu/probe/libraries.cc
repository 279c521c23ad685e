#include "bench/gpu/probe/libraries.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <vector>

#include "bench/gpu/probe/process.h"

namespace harmony::bench {
namespace {

// Of cublas_api.h and library_types.h.
constexpr int kNotTransposed = 0, kBf16 = 14, kComputeFp32 = 68, kDefaultAlgorithm = -1;
using CreateFunction = int (*)(void** handle);
using VersionFunction = int (*)(void* handle, int* version);
using StreamFunction = int (*)(void* handle, CUstream stream);
using WorkspaceFunction = int (*)(void* handle, void* workspace, size_t bytes);
using ProductFunction = int (*)(void* handle, int transpose_a, int transpose_b, int m, int n, int k,
                                const void* alpha, const void* a, int type_a, int lda,
                                const void* b, int type_b, int ldb, const void* beta, void* c,
                                int type_c, int ldc, int compute, int algorithm);

template <typename Function>
Function Symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

void AddMatches(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) paths.push_back(found.gl_pathv[i]);
  }
  globfree(&found);
}

std::vector<std::string> BlasPaths() {
  const std::string& given = TheSettings().cublas;
  if (!given.empty()) return {given};
  std::vector<std::string> paths = {"libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13"};
  std::vector<std::string> roots = {"/usr/local", "/usr", "/opt/*", "/root/*", "/home/*/*"};
  const char* environment = getenv("VIRTUAL_ENV");
  if (environment != nullptr) roots.insert(roots.begin(), environment);
  for (const std::string& root : roots) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      AddMatches(root + "/lib/python3*/" + packages + "/nvidia/cu13/lib/libcublas.so.13", paths);
    }
  }
  return paths;
}

// What cuBLAS links; beside it, it is not always on the loader's path.
void OpenBeside(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return;
  dlopen((path.substr(0, slash) + "/libcublasLt.so.13").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

std::string Blas::Open(CUstream stream, CUdeviceptr workspace, uint64_t workspace_bytes) {
  void* library = nullptr;
  for (const std::string& path : BlasPaths()) {
    OpenBeside(path);
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    path_ = path;
    if (library != nullptr) break;
  }
  if (library == nullptr) return "libcublas.so.13 is not found: name it by --cublas";
  const auto create = Symbol<CreateFunction>(library, "cublasCreate_v2");
  const auto version = Symbol<VersionFunction>(library, "cublasGetVersion_v2");
  const auto set_stream = Symbol<StreamFunction>(library, "cublasSetStream_v2");
  const auto set_workspace = Symbol<WorkspaceFunction>(library, "cublasSetWorkspace_v2");
  product_ = dlsym(library, "cublasGemmEx");
  if (create == nullptr || version == nullptr || set_stream == nullptr ||
      set_workspace == nullptr || product_ == nullptr) {
    return path_ + " lacks a function";
  }
  int status = create(&handle_);
  if (status == 0) status = version(handle_, &version_);
  if (status == 0) status = set_stream(handle_, stream);
  if (status == 0) {
    status = set_workspace(handle_, reinterpret_cast<void*>(workspace), workspace_bytes);
  }
  return status == 0 ? "" : Format("cuBLAS does not start: status %d", status);
}

const char* Blas::Product(CUdeviceptr c, CUdeviceptr a, CUdeviceptr b, int m, int n, int k) const {
  const float one = 1, zero = 0;
  // cuBLAS goes by columns: the transposed product of the transposed matrices.
  const int status = reinterpret_cast<ProductFunction>(product_)(
      handle_, kNotTransposed, kNotTransposed, n, m, k, &one, reinterpret_cast<const void*>(b),
      kBf16, n, reinterpret_cast<const void*>(a), kBf16, k, &zero, reinterpret_cast<void*>(c),
      kBf16, n, kComputeFp32, kDefaultAlgorithm);
  return status == 0 ? nullptr : "cublasGemmEx failed";
}

Nvml::Nvml(const std::string& pci_bus_id) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto init = Symbol<int (*)()>(library_, "nvmlInit_v2");
  const auto by_bus =
      Symbol<int (*)(const char*, void**)>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  const auto by_index =
      Symbol<int (*)(unsigned, void**)>(library_, "nvmlDeviceGetHandleByIndex_v2");
  if (init == nullptr || by_bus == nullptr || by_index == nullptr || init() != 0) return;
  // By index only where the bus is not known: CUDA may number devices otherwise.
  if (by_bus(pci_bus_id.c_str(), &device_) == 0) return;
  if (by_index(static_cast<unsigned>(TheSettings().device), &device_) != 0) device_ = nullptr;
}

std::string Nvml::driver_version() const {
  const auto ask = Symbol<int (*)(char*, unsigned)>(library_, "nvmlSystemGetDriverVersion");
  char text[96] = "";
  return ask != nullptr && works() && ask(text, sizeof(text)) == 0 ? text : "";
}

int Nvml::pcie_generation(bool most) const {
  const auto ask =
      Symbol<int (*)(void*, unsigned*)>(library_, most ? "nvmlDeviceGetMaxPcieLinkGeneration"
                                                       : "nvmlDeviceGetCurrPcieLinkGeneration");
  unsigned value = 0;
  return ask != nullptr && works() && ask(device_, &value) == 0 ? static_cast<int>(value) : -1;
}

int Nvml::pcie_width(bool most) const {
  const auto ask = Symbol<int (*)(void*, unsigned*)>(
      library_, most ? "nvmlDeviceGetMaxPcieLinkWidth" : "nvmlDeviceGetCurrPcieLinkWidth");
  unsigned value = 0;
  return ask != nullptr && works() && ask(device_, &value) == 0 ? static_cast<int>(value) : -1;
}

int Nvml::mig() const {
  const auto ask = Symbol<int (*)(void*, unsigned*, unsigned*)>(library_, "nvmlDeviceGetMigMode");
  unsigned now = 0, later = 0;
  return ask != nullptr && works() && ask(device_, &now, &later) == 0 ? static_cast<int>(now) : -1;
}

std::set<unsigned> Nvml::ProcessIds() const {
  struct Entry {
    unsigned process;
    unsigned long long memory;
    unsigned gpu_instance;
    unsigned compute_instance;
  };
  const auto ask = Symbol<int (*)(void*, unsigned*, Entry*)>(
      library_, "nvmlDeviceGetComputeRunningProcesses_v3");
  std::set<unsigned> ids;
  if (ask == nullptr || !works()) return ids;
  Entry entries[256] = {};
  unsigned count = 256;
  if (ask(device_, &count, entries) != 0) return ids;
  for (unsigned i = 0; i < count && i < 256; ++i) ids.insert(entries[i].process);
  return ids;
}

}  // namespace harmony::bench
