#include "common/io/sequence_order.h"

#include "common/base/random.h"

namespace harmony::io {
namespace {

// Part of what fixes a run with `shuffle`: any other number is another order.
constexpr int kRounds = 6;
// Keeps these draws apart from those of initialisation, which share the seed.
constexpr uint64_t kShuffleStream = uint64_t{0x5368756666} << 24;  // "Shuff"

}  // namespace

SequenceOrder::SequenceOrder(int64_t sequence_count, int64_t global_batch, bool shuffle,
                             uint64_t seed)
    : sequence_count_(sequence_count),
      global_batch_(global_batch),
      shuffle_(shuffle),
      seed_(seed),
      half_bits_(1) {
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < sequence_count) ++half_bits_;
}

int64_t SequenceOrder::SequenceIndex(int64_t step_index, int64_t sample) const {
  const int64_t n = step_index * global_batch_ + sample;
  const int64_t position = n % sequence_count_;
  return shuffle_ ? Permute(position, n / sequence_count_) : position;
}

// A Feistel network is a permutation of [0, 2^(2 half_bits)); walking along its cycle until it is
// inside [0, sequence_count) makes a permutation of that. On average below four walks.
int64_t SequenceOrder::Permute(int64_t position, int64_t data_epoch) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = static_cast<uint64_t>(position);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t counter = (right << 8) | static_cast<uint64_t>(round);
      const uint64_t mixed =
          left ^
          (Philox4x32(seed_, counter, kShuffleStream + static_cast<uint64_t>(data_epoch))[0] &
           mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<uint64_t>(sequence_count_));
  return static_cast<int64_t>(value);
}

}  // namespace harmony::io
