#include "worker/cuda/row_kernels.h"

#include <algorithm>

#include "worker/kernels/row_dispatch.h"

namespace harmony::worker::cuda {
namespace {

constexpr int kWarp = 32, kWarps = rows::kLanes / kWarp;

// A block of threads.
class Team {
 public:
  __device__ Team(float* numbers, float2* of_warps) : scratch(numbers), of_warps_(of_warps) {}

  float* const scratch;

  template <typename F>
  __device__ void ForEach(int64_t count, const F& f) const {
    for (int64_t i = threadIdx.x; i < count; i += rows::kLanes) f(i);
  }
  template <typename F>
  __device__ void Once(const F& f) const {
    if (threadIdx.x == 0) f();
  }
  __device__ void Sync() const { __syncthreads(); }

  template <typename F, typename Add>
  __device__ rows::Two Reduce(int64_t count, rows::Two zero, const F& f, const Add& add) const {
    rows::Two sum = zero;
    for (int64_t i = threadIdx.x; i < count; i += rows::kLanes) sum = add(sum, f(i));
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const rows::Two other = {__shfl_down_sync(~0U, sum.first, apart),
                               __shfl_down_sync(~0U, sum.second, apart)};
      sum = add(sum, other);
    }
    __syncthreads();  // all have read what the Reduce before has left
    if (threadIdx.x % kWarp == 0)
      of_warps_[threadIdx.x / kWarp] = make_float2(sum.first, sum.second);
    __syncthreads();
    sum = {of_warps_[0].x, of_warps_[0].y};
    for (int warp = 1; warp < kWarps; ++warp) {
      sum = add(sum, rows::Two{of_warps_[warp].x, of_warps_[warp].y});
    }
    return sum;
  }

 private:
  float2* const of_warps_;
};

template <typename Body>
__global__ void __launch_bounds__(rows::kLanes) RunTeams(const __grid_constant__ Body body) {
  extern __shared__ float4 scratch[];
  __shared__ float2 of_warps[kWarps];
  Team team(reinterpret_cast<float*>(scratch), of_warps);
  body(team, static_cast<int64_t>(blockIdx.x));
}

template <typename Body>
__global__ void __launch_bounds__(rows::kLanes)
    RunEach(int64_t count, const __grid_constant__ Body body) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(rows::kLanes) + threadIdx.x;
  if (i < count) body(i);
}

class Launcher {
 public:
  template <typename Body>
  void Teams(int64_t count, int64_t scratch, const Body& body) const {
    if (count == 0) return;
    RunTeams<<<static_cast<unsigned>(count), rows::kLanes,
               static_cast<size_t>((scratch + 3) / 4) * sizeof(float4), nullptr>>>(body);
  }
  template <typename Body>
  void Each(int64_t count, const Body& body) const {
    if (count == 0) return;
    const int64_t blocks = (count + rows::kLanes - 1) / rows::kLanes;
    RunEach<<<static_cast<unsigned>(blocks), rows::kLanes, 0, nullptr>>>(count, body);
  }
};

}  // namespace

const RowKernels& CudaRowKernels() {
  static const rows::RowKernelsBy<Launcher> kernels((Launcher()));
  return kernels;
}

}  // namespace harmony::worker::cuda
