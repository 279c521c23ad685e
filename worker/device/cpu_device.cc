#include "worker/device/cpu_device.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/device/cpu_memory.h"
#include "worker/kernels/cpu_row_kernels.h"

namespace harmony::worker {
namespace {

class CpuBlock : public WorkspaceBlock {
 public:
  explicit CpuBlock(c10::DataPtr data)
      : WorkspaceBlock(AddressOf(data.get())), data_(std::move(data)) {}

 private:
  c10::DataPtr data_;
};

// Of numbers of 16 bits: none has all bits of the exponent set.
bool AllFinite16(const uint16_t* x, int64_t count, uint16_t exponent) {
  for (int64_t i = 0; i < count; ++i) {
    if ((x[i] & exponent) == exponent) return false;
  }
  return true;
}

bool HoldsFiniteValues(const DeviceTensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
      return AllFinite(HostPointer<const float>(tensor.address), tensor.elements());
    case DType::kF64: {
      const double* x = HostPointer<const double>(tensor.address);
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        if (!std::isfinite(x[i])) return false;
      }
      return true;
    }
    case DType::kBF16:
      return AllFinite16(HostPointer<const uint16_t>(tensor.address), tensor.elements(), 0x7f80);
    case DType::kF16:
      return AllFinite16(HostPointer<const uint16_t>(tensor.address), tensor.elements(), 0x7c00);
    default:
      return !IsFloatingPoint(tensor.dtype);  // this device computes in no other type
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::Create(const Options& options) {
  std::optional<Workspace> mapped;
  if (options.workspace.has_value() && options.workspace_at == nullptr) {
    HARMONY_ASSIGN_OR_RETURN(Workspace workspace, Workspace::Map(*options.workspace));
    mapped.emplace(std::move(workspace));
  }
  return std::unique_ptr<CpuDevice>(new CpuDevice(options, std::move(mapped)));
}

CpuDevice::CpuDevice(const Options& options, std::optional<Workspace> mapped)
    : options_(options), mapped_(std::move(mapped)) {
  if (!options_.workspace.has_value()) return;
  allocator_.emplace(mapped_.has_value() ? mapped_->data() : options_.workspace_at,
                     *options_.workspace);
  allocator_->Activate();
}

CpuDevice::~CpuDevice() {
  if (allocator_.has_value()) allocator_->Deactivate();
}

DeviceAddress CpuDevice::resident() const { return AddressOf(options_.resident); }

void CpuDevice::PrepareThread() {
  if (options_.compute_threads <= 0 || prepared_ == std::this_thread::get_id()) return;
  SetComputeThreads(options_.compute_threads);
  prepared_ = std::this_thread::get_id();
}

absl::StatusOr<std::unique_ptr<WorkspaceBlock>> CpuDevice::Allocate(Bytes size) {
  try {
    return std::make_unique<CpuBlock>(
        c10::GetCPUAllocator()->allocate(static_cast<size_t>(size.count())));
  } catch (const c10::Error& error) {
    return absl::ResourceExhaustedError(error.what_without_backtrace());
  }
}

void CpuDevice::Zero(DeviceAddress address, Bytes size) {
  ZeroBytes(HostPointer<void>(address), size.count());
}

void CpuDevice::Convert(const DeviceTensor& from, const DeviceTensor& to) {
  if (to.dtype == from.dtype) {
    const int64_t bytes = (SizeOf(to.dtype) * to.elements()).count();
    std::memmove(HostPointer<void>(to.address), HostPointer<const void>(from.address),
                 static_cast<size_t>(bytes));
    return;
  }
  RoundToBf16(HostPointer<const float>(from.address), to.elements(),
              HostPointer<uint16_t>(to.address));
}

void CpuDevice::Add(const DeviceTensor& from, const DeviceTensor& to, DType type) {
  AddNumbers(HostPointer<const float>(from.address), to.elements(), type == DType::kBF16,
             HostPointer<float>(to.address));
}

void CpuDevice::CheckFinite(const DeviceTensor& tensor, int tag) {
  if (first_bad_ < 0 && !HoldsFiniteValues(tensor)) first_bad_ = tag;
}

const RowKernels& CpuDevice::row_kernels() const { return CpuRowKernels(); }

absl::StatusOr<int> CpuDevice::Synchronize() { return std::exchange(first_bad_, -1); }

absl::Status CpuDevice::Write(DeviceAddress to, absl::Span<const std::byte> from) {
  std::memcpy(HostPointer<void>(to), from.data(), from.size());
  return absl::OkStatus();
}

absl::Status CpuDevice::Read(DeviceAddress from, absl::Span<std::byte> to) {
  std::memcpy(to.data(), HostPointer<const void>(from), to.size());
  return absl::OkStatus();
}

ComputeDevice::Usage CpuDevice::usage() const {
  if (!allocator_.has_value()) return {};
  const SimAllocator::Usage usage = allocator_->usage();
  return {usage.current, usage.peak};
}

}  // namespace harmony::worker
