#pragma once

#include <array>
#include <cstddef>
#include <memory>

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
  // `destination`, in whose memory the copies end, outlives it.
  static absl::StatusOr<std::unique_ptr<PeerBounce>> Create(const cuda::Driver& driver,
                                                            const cuda::Context& destination);
  ~PeerBounce();

  // Returns when the bytes have arrived, or nothing is under way any more. `out` is a queue of
  // `source`.
  absl::Status Run(const cuda::Context& source, cuda::CopyQueue& out, CUdeviceptr from,
                   CUdeviceptr to, Bytes size);

 private:
  PeerBounce(const cuda::Driver& driver, const cuda::Context& destination, cuda::CopyQueue in)
      : driver_(driver), destination_(destination), in_(std::move(in)) {}

  absl::Status Fill(const cuda::Context& source, cuda::CopyQueue& out, CUdeviceptr from,
                    std::byte* buffer, Bytes size);
  // Begins to; the buffer before is empty then.
  absl::Status Empty(std::byte* buffer, CUdeviceptr to, Bytes size);

  const cuda::Driver& driver_;
  const cuda::Context& destination_;
  cuda::CopyQueue in_;
  std::byte* memory_ = nullptr;
  bool pinned_ = false;
};

}  // namespace harmony::swapper
