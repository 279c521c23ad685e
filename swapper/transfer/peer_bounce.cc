#include "swapper/transfer/peer_bounce.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/status.h"

namespace harmony::swapper {
namespace {

// Large enough that starting and awaiting a piece is little beside its copy (160 us at 25 GB/s).
constexpr Bytes kBuffer(int64_t{4} << 20);
constexpr size_t kMemory = 2 * static_cast<size_t>(kBuffer.count());

}  // namespace

absl::StatusOr<std::unique_ptr<PeerBounce>> PeerBounce::Create(const cuda::Driver& driver,
                                                               const cuda::Context& destination) {
  HARMONY_RETURN_IF_ERROR(destination.MakeCurrent());
  HARMONY_ASSIGN_OR_RETURN(cuda::CopyQueue in, cuda::CopyQueue::Create(driver));
  auto bounce = std::unique_ptr<PeerBounce>(new PeerBounce(driver, destination, std::move(in)));
  void* const memory =
      mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "mapping buffers for copies between GPUs");
  }
  bounce->memory_ = static_cast<std::byte*>(memory);
  HARMONY_RETURN_IF_ERROR(
      driver.Check(driver.MemHostRegister(memory, kMemory, CU_MEMHOSTREGISTER_PORTABLE),
                   "pinning buffers for copies between GPUs"));
  bounce->pinned_ = true;
  return bounce;
}

PeerBounce::~PeerBounce() {
  if (pinned_) driver_.MemHostUnregister(memory_);
  if (memory_ != nullptr) munmap(memory_, kMemory);
}

absl::Status PeerBounce::Run(const cuda::Context& source, cuda::CopyQueue& out, CUdeviceptr from,
                             CUdeviceptr to, Bytes size) {
  absl::Status status;
  std::byte* buffer = memory_;
  for (Bytes done; done < size && status.ok();) {
    const Bytes piece = std::min(kBuffer, size - done);
    const auto at = static_cast<CUdeviceptr>(done.count());
    status = Fill(source, out, from + at, buffer, piece);
    if (status.ok()) status = Empty(buffer, to + at, piece);
    buffer = buffer == memory_ ? memory_ + kBuffer.count() : memory_;
    done += piece;
  }
  status.Update(destination_.MakeCurrent());
  status.Update(in_.Finish());
  return status;
}

absl::Status PeerBounce::Fill(const cuda::Context& source, cuda::CopyQueue& out, CUdeviceptr from,
                              std::byte* buffer, Bytes size) {
  HARMONY_RETURN_IF_ERROR(source.MakeCurrent());
  const absl::Status queued = driver_.Check(
      driver_.MemcpyDtoHAsync(buffer, from, static_cast<size_t>(size.count()), out.stream()),
      "starting a copy");
  const absl::Status finished = out.Finish();
  return queued.ok() ? finished : queued;
}

absl::Status PeerBounce::Empty(std::byte* buffer, CUdeviceptr to, Bytes size) {
  HARMONY_RETURN_IF_ERROR(destination_.MakeCurrent());
  HARMONY_RETURN_IF_ERROR(in_.Finish());
  return driver_.Check(
      driver_.MemcpyHtoDAsync(to, buffer, static_cast<size_t>(size.count()), in_.stream()),
      "starting a copy");
}

}  // namespace harmony::swapper
