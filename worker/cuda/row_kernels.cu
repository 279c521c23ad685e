#include "worker/cuda/row_kernels.h"

#include "worker/kernels/row_dispatch.h"

namespace harmony::worker::cuda {
namespace {

using rows::kLanes, rows::kWarp;

constexpr int kWarps = kLanes / kWarp;

// A block of threads, or a warp of it.
template <int kTeam>
class Team {
 public:
  __device__ Team(float* numbers, float2* of_warps) : scratch(numbers), of_warps_(of_warps) {}

  float* const scratch;

  template <typename F>
  __device__ void ForEach(int64_t count, const F& f) const {
    for (int64_t i = lane(); i < count; i += kTeam) f(i);
  }
  template <typename F>
  __device__ void Once(const F& f) const {
    if (lane() == 0) f();
  }
  __device__ void Sync() const {
    if constexpr (kTeam == kWarp) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  template <typename F, typename Add>
  __device__ rows::Two Reduce(int64_t count, rows::Two zero, const F& f, const Add& add) const {
    rows::Two sum = zero;
    for (int64_t i = lane(); i < count; i += kTeam) sum = add(sum, f(i));
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const rows::Two other = {__shfl_down_sync(~0U, sum.first, apart),
                               __shfl_down_sync(~0U, sum.second, apart)};
      sum = add(sum, other);
    }
    if constexpr (kTeam == kWarp) {
      return {__shfl_sync(~0U, sum.first, 0), __shfl_sync(~0U, sum.second, 0)};
    } else {
      return OfWarps(sum, add);
    }
  }

 private:
  __device__ static int64_t lane() { return threadIdx.x % kTeam; }

  // Of the sums that the first lanes of all warps have.
  template <typename Add>
  __device__ rows::Two OfWarps(rows::Two sum, const Add& add) const {
    __syncthreads();  // all have read what the Reduce before has left
    if (threadIdx.x % kWarp == 0) {
      of_warps_[threadIdx.x / kWarp] = make_float2(sum.first, sum.second);
    }
    __syncthreads();
    sum = {of_warps_[0].x, of_warps_[0].y};
    for (int warp = 1; warp < kWarps; ++warp) {
      sum = add(sum, rows::Two{of_warps_[warp].x, of_warps_[warp].y});
    }
    return sum;
  }

  float2* const of_warps_;
};

template <int kTeam, typename Body>
__global__ void __launch_bounds__(kLanes)
    RunTeams(int64_t count, int64_t scratch_of_team, const __grid_constant__ Body body) {
  extern __shared__ float4 scratch[];
  __shared__ float2 of_warps[kWarps];
  const unsigned number = threadIdx.x / kTeam;
  const int64_t i = blockIdx.x * static_cast<int64_t>(kLanes / kTeam) + number;
  if (i >= count) return;  // all lanes of a team together; a team that is a block has its number
  Team<kTeam> team(reinterpret_cast<float*>(scratch + number * scratch_of_team), of_warps);
  body(team, i);
}

template <typename Body>
__global__ void __launch_bounds__(kLanes)
    RunEach(int64_t count, const __grid_constant__ Body body) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kLanes) + threadIdx.x;
  if (i < count) body(i);
}

class Launcher {
 public:
  template <int kTeam, typename Body>
  void Teams(int64_t count, int64_t scratch, const Body& body) const {
    if (count == 0) return;
    constexpr int64_t kTeams = kLanes / kTeam;  // of a block
    const int64_t of_team = (scratch + 3) / 4;  // of four numbers each
    const auto bytes = static_cast<size_t>(kTeams * of_team) * sizeof(float4);
    const auto blocks = static_cast<unsigned>((count + kTeams - 1) / kTeams);
    RunTeams<kTeam><<<blocks, kLanes, bytes, nullptr>>>(count, of_team, body);
  }
  template <typename Body>
  void Each(int64_t count, const Body& body) const {
    if (count == 0) return;
    const int64_t blocks = (count + kLanes - 1) / kLanes;
    RunEach<<<static_cast<unsigned>(blocks), kLanes, 0, nullptr>>>(count, body);
  }
};

}  // namespace

const RowKernels& CudaRowKernels() {
  static const rows::RowKernelsBy<Launcher> kernels((Launcher()));
  return kernels;
}

}  // namespace harmony::worker::cuda
