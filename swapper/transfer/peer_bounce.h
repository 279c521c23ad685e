#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "common/cuda/context.h"

namespace harmony::swapper {

// Copies to one GPU from others that cannot reach its memory: through two buffers of pinned host
// memory in turn, so that one fills while the other empties.
//
// One thread at a time.
class PeerBounce {
 public:
  // Of each of the two. Large enough that starting and awaiting a piece is little beside its copy
  // (160 us at 25 GB/s).
  static constexpr Bytes kBuffer{int64_t{4} << 20};

  // `destination`, in whose memory the copies end, outlives it. Where the system refuses to pin,
  // the buffers are not pinned, and the log says so.
  static absl::StatusOr<std::unique_ptr<PeerBounce>> Create(const cuda::Driver& driver,
                                                            const cuda::Context& destination,
                                                            Bytes buffer);
  ~PeerBounce();

  // Returns when the bytes have arrived, or nothing is under way any more. `out` is a queue of
  // `source`.
  absl::Status Run(const cuda::Context& source, cuda::CopyQueue& out, CUdeviceptr from,
                   CUdeviceptr to, Bytes size);

 private:
  PeerBounce(const cuda::Driver& driver, const cuda::Context& destination, Bytes buffer,
             cuda::CopyQueue in)
      : driver_(driver), destination_(destination), buffer_(buffer), in_(std::move(in)) {}

  size_t memory_bytes() const { return static_cast<size_t>((buffer_ * 2).count()); }

  absl::Status Fill(const cuda::Context& source, cuda::CopyQueue& out, CUdeviceptr from,
                    std::byte* buffer, Bytes size);
  // Begins to; the buffer before is empty then.
  absl::Status Empty(std::byte* buffer, CUdeviceptr to, Bytes size);

  const cuda::Driver& driver_;
  const cuda::Context& destination_;
  const Bytes buffer_;
  cuda::CopyQueue in_;
  std::byte* memory_ = nullptr;
  bool pinned_ = false;
};

}  // namespace harmony::swapper
