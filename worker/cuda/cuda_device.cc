#include "worker/cuda/cuda_device.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/util/Exception.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/row_kernels.h"
#include "worker/cuda/workspace_allocator.h"

namespace harmony::worker::cuda {
namespace {

// Of the default stream, which all work of a worker goes to.
constexpr cudaStream_t kStream = nullptr;
// Rounded at a time in a conversion in place: at the memory's speed a launch is little beside it.
constexpr int64_t kNarrowedAtOnce = int64_t{1} << 21;
// A device's own memory: the flag of the checks, and the scratch behind it.
constexpr int64_t kFlagBytes = kSlotAlignment;
constexpr int64_t kOwnBytes = kFlagBytes + kNarrowedAtOnce * int64_t{sizeof(uint16_t)};

template <typename T>
T* Pointer(DeviceAddress address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address.value()));
}

absl::Status StatusOf(cudaError_t result, absl::string_view what) {
  if (result == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorString(result), " (", cudaGetErrorName(result), ")");
  // Whatever failed on the stream has left the context of no use.
  return absl::UnavailableError(message);
}

// LibTorch repeats a warning at each call.
class OnceInTheLog : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    MutexLock lock(mutex_);
    if (seen_.insert(warning.msg()).second) spdlog::warn("LibTorch: {}", warning.msg());
  }

 private:
  Mutex mutex_;
  std::set<std::string> seen_ ABSL_GUARDED_BY(mutex_);
};

class CudaBlock : public WorkspaceBlock {
 public:
  CudaBlock(CudaDevice& device, DeviceAddress address) : WorkspaceBlock(address), device_(device) {}
  ~CudaBlock() override { device_.Give(address()); }

 private:
  CudaDevice& device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const Options& options) {
  auto device = std::unique_ptr<CudaDevice>(new CudaDevice(options));
  HARMONY_RETURN_IF_ERROR(StatusOf(cudaSetDevice(options.ordinal), "choosing a GPU"));
  // Of the process rather than of the workspace, in which plans count what layers need.
  void* own = nullptr;
  HARMONY_RETURN_IF_ERROR(StatusOf(cudaMalloc(&own, kOwnBytes), "what a process needs of a GPU"));
  device->own_ = DeviceAddress(reinterpret_cast<uintptr_t>(own));
  HARMONY_RETURN_IF_ERROR(
      StatusOf(cudaMemset(Pointer<void>(device->flag()), 0xff, sizeof(int)), "readying a GPU"));
  UseWorkspaceOf(device.get());
  return device;
}

CudaDevice::CudaDevice(const Options& options) : options_(options), fit_(options.workspace) {}

CudaDevice::~CudaDevice() {
  cudaDeviceSynchronize();  // of what may still use the memory
  // LibTorch keeps cuBLAS's for as long as the process lives, also what a thread took from the
  // workspace where it was not prepared: the next job's is at the same addresses, and would be
  // given out a second time.
  at::cuda::clearCublasWorkspaces();
  UseWorkspaceOf(nullptr);
  if (own_) cudaFree(Pointer<void>(own_));
}

void CudaDevice::PrepareThread() {
  Note(cudaSetDevice(options_.ordinal));
  static auto* const warnings = new OnceInTheLog;
  c10::WarningUtils::set_warning_handler(warnings);
  try {
    PrepareLibraries();
  } catch (const c10::Error& error) {
    spdlog::error("cuBLAS on a GPU: {}", error.what_without_backtrace());
    Note(cudaErrorMemoryAllocation);
  }
}

DeviceAddress CudaDevice::flag() const { return own_; }
DeviceAddress CudaDevice::scratch() const { return own_ + Bytes(kFlagBytes); }

DeviceAddress CudaDevice::Take(Bytes size, BestFit::Usage& usage) {
  MutexLock lock(mutex_);
  const std::optional<Bytes> offset = fit_.Take(std::max(size, Bytes(1)));
  if (offset.has_value()) return workspace() + *offset;
  usage = fit_.usage();
  return {};
}

void CudaDevice::Give(DeviceAddress address) {
  MutexLock lock(mutex_);
  fit_.Give(Bytes(static_cast<int64_t>(address.value() - workspace().value())));
}

absl::StatusOr<std::unique_ptr<WorkspaceBlock>> CudaDevice::Allocate(Bytes size) {
  BestFit::Usage usage;
  const DeviceAddress address = Take(size, usage);
  if (address) return std::make_unique<CudaBlock>(*this, address);
  return absl::ResourceExhaustedError(OutOfMemoryText(size, usage));
}

void CudaDevice::Zero(DeviceAddress address, Bytes size) {
  Note(cudaMemsetAsync(Pointer<void>(address), 0, static_cast<size_t>(size.count()), kStream));
}

void CudaDevice::Convert(const DeviceTensor& from, const DeviceTensor& to) {
  const int64_t count = to.elements();
  // Piece by piece through the scratch: what is written never reaches what is still to be read,
  // since the target begins at the source or before it, and its numbers are no larger.
  const int64_t from_size = SizeOf(from.dtype).count(), to_size = SizeOf(to.dtype).count();
  const int64_t piece = kNarrowedAtOnce * static_cast<int64_t>(sizeof(uint16_t)) / to_size;
  for (int64_t begin = 0; begin < count; begin += piece) {
    const int64_t part = std::min(piece, count - begin);
    const DeviceAddress source = from.address + Bytes(begin * from_size);
    if (from.dtype == to.dtype) {
      Note(cudaMemcpyAsync(Pointer<void>(scratch()), Pointer<const void>(source),
                           static_cast<size_t>(part * to_size), cudaMemcpyDeviceToDevice, kStream));
    } else {
      Narrow(Pointer<const float>(source), part, Pointer<uint16_t>(scratch()), kStream);
      Note(cudaGetLastError());
    }
    Note(cudaMemcpyAsync(Pointer<void>(to.address + Bytes(begin * to_size)),
                         Pointer<const void>(scratch()), static_cast<size_t>(part * to_size),
                         cudaMemcpyDeviceToDevice, kStream));
  }
}

void CudaDevice::Add(const DeviceTensor& from, const DeviceTensor& to, DType type) {
  AddNumbers(Pointer<const float>(from.address), to.elements(), type == DType::kBF16,
             Pointer<float>(to.address), kStream);
  Note(cudaGetLastError());
}

void CudaDevice::CheckFinite(const DeviceTensor& tensor, int tag) {
  const auto check = [&](NumberKind kind) {
    cuda::CheckFinite(Pointer<const void>(tensor.address), kind, tensor.elements(), tag,
                      Pointer<int>(flag()), kStream);
    Note(cudaGetLastError());
  };
  switch (tensor.dtype) {
    case DType::kF32:
      return check(NumberKind::kF32);
    case DType::kF64:
      return check(NumberKind::kF64);
    case DType::kBF16:
      return check(NumberKind::kBf16);
    case DType::kF16:
      return check(NumberKind::kF16);
    default:
      return;  // this device computes in no other floating-point type
  }
}

const RowKernels& CudaDevice::row_kernels() const { return CudaRowKernels(); }

absl::StatusOr<int> CudaDevice::Synchronize() {
  int found = -1;
  Note(cudaGetLastError());  // of launches, which say nothing themselves
  Note(cudaMemcpyAsync(&found, Pointer<const void>(flag()), sizeof(found), cudaMemcpyDeviceToHost,
                       kStream));
  Note(cudaStreamSynchronize(kStream));
  if (found >= 0) Note(cudaMemsetAsync(Pointer<void>(flag()), 0xff, sizeof(int), kStream));
  HARMONY_RETURN_IF_ERROR(StatusOf(std::exchange(failure_, cudaSuccess), "computing on a GPU"));
  return found;
}

absl::Status CudaDevice::Write(DeviceAddress to, absl::Span<const std::byte> from) {
  Note(cudaMemcpyAsync(Pointer<void>(to), from.data(), from.size(), cudaMemcpyHostToDevice,
                       kStream));
  return StatusOf(cudaStreamSynchronize(kStream), "writing to a GPU");
}

absl::Status CudaDevice::Read(DeviceAddress from, absl::Span<std::byte> to) {
  Note(cudaMemcpyAsync(to.data(), Pointer<const void>(from), to.size(), cudaMemcpyDeviceToHost,
                       kStream));
  return StatusOf(cudaStreamSynchronize(kStream), "reading from a GPU");
}

ComputeDevice::Usage CudaDevice::usage() const {
  MutexLock lock(mutex_);
  const BestFit::Usage usage = fit_.usage();
  return {usage.current, usage.peak};
}

void CudaDevice::Note(cudaError_t result) {
  if (failure_ == cudaSuccess) failure_ = result;
}

}  // namespace harmony::worker::cuda
