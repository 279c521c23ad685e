#include "swapper/transfer/peer_bounce.h"

#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace harmony::swapper {

absl::StatusOr<std::unique_ptr<PeerBounce>> PeerBounce::Create(const cuda::Driver& driver,
                                                               const cuda::Context& destination,
                                                               Bytes buffer) {
  HARMONY_RETURN_IF_ERROR(destination.MakeCurrent());
  HARMONY_ASSIGN_OR_RETURN(cuda::CopyQueue in, cuda::CopyQueue::Create(driver));
  auto bounce =
      std::unique_ptr<PeerBounce>(new PeerBounce(driver, destination, buffer, std::move(in)));
  void* const memory = mmap(nullptr, bounce->memory_bytes(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "mapping buffers for copies between GPUs");
  }
  bounce->memory_ = static_cast<std::byte*>(memory);
  const absl::Status pinned = driver.Check(
      driver.MemHostRegister(memory, bounce->memory_bytes(), CU_MEMHOSTREGISTER_PORTABLE),
      "pinning buffers for copies between GPUs");
  if (absl::IsUnavailable(pinned)) return pinned;
  if (!pinned.ok()) spdlog::warn("they are slower: {}", std::string(pinned.message()));
  bounce->pinned_ = pinned.ok();
  return bounce;
}

PeerBounce::~PeerBounce() {
  if (pinned_) driver_.MemHostUnregister(memory_);
  if (memory_ != nullptr) munmap(memory_, memory_bytes());
}

absl::Status PeerBounce::Run(const cuda::Context& source, cuda::CopyQueue& out, CUdeviceptr from,
                             CUdeviceptr to, Bytes size) {
  absl::Status status;
  std::byte* buffer = memory_;
  for (Bytes done; done < size && status.ok();) {
    const Bytes piece = std::min(buffer_, size - done);
    const auto at = static_cast<CUdeviceptr>(done.count());
    status = Fill(source, out, from + at, buffer, piece);
    if (status.ok()) status = Empty(buffer, to + at, piece);
    buffer = buffer == memory_ ? memory_ + buffer_.count() : memory_;
    done += piece;
  }
  status.Update(destination_.MakeCurrent());
  const absl::Status finished = in_.Finish();
  // What may be under way still is worse than what went wrong before.
  return status.ok() || absl::IsUnavailable(finished) ? finished : status;
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
