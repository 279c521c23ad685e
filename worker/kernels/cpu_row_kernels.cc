#include "worker/kernels/cpu_row_kernels.h"

#include <vector>

#include "worker/kernels/row_dispatch.h"

namespace harmony::worker {
namespace {

template <int kTeam>
class Team {
 public:
  explicit Team(float* numbers) : scratch(numbers) {}

  float* const scratch;

  template <typename F>
  void ForEach(int64_t count, const F& f) const {
    for (int64_t i = 0; i < count; ++i) f(i);
  }
  template <typename F>
  void Once(const F& f) const {
    f();
  }
  void Sync() const {}

  // As a GPU does it: each lane for itself, then those of a warp in pairs, then the warps.
  template <typename F, typename Add>
  rows::Two Reduce(int64_t count, rows::Two zero, const F& f, const Add& add) const {
    using rows::kWarp;
    rows::Two sum = zero;
    for (int64_t warp = 0; warp < kTeam; warp += kWarp) {
      rows::Two lanes[kWarp];
      for (int64_t lane = 0; lane < kWarp; ++lane) {
        lanes[lane] = zero;
        for (int64_t i = warp + lane; i < count; i += kTeam) {
          lanes[lane] = add(lanes[lane], f(i));
        }
      }
      for (int apart = kWarp / 2; apart > 0; apart /= 2) {
        for (int lane = 0; lane < apart; ++lane) {
          lanes[lane] = add(lanes[lane], lanes[lane + apart]);
        }
      }
      sum = warp == 0 ? lanes[0] : add(sum, lanes[0]);
    }
    return sum;
  }
};

class Launcher {
 public:
  template <int kTeam, typename Body>
  void Teams(int64_t count, int64_t scratch, const Body& body) const {
    std::vector<rows::Pack<float, 4>> numbers(static_cast<size_t>((scratch + 3) / 4));
    Team<kTeam> team(scratch == 0 ? nullptr : numbers.front().numbers);
    for (int64_t i = 0; i < count; ++i) body(team, i);
  }
  template <typename Body>
  void Each(int64_t count, const Body& body) const {
    for (int64_t i = 0; i < count; ++i) body(i);
  }
};

}  // namespace

const RowKernels& CpuRowKernels() {
  static const rows::RowKernelsBy<Launcher> kernels((Launcher()));
  return kernels;
}

}  // namespace harmony::worker
