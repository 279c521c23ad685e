#pragma once

// Which sequence of the training data each sample of each step is. A pure function of its
// arguments, so a resumed or re-planned run goes on with the same data.

#include <cstdint>

namespace harmony::io {

// Sample i of step s (both from 0) is the (s * global_batch + i)-th in an endless run over the
// data; each pass (data epoch) visits every sequence once. Without shuffling, in order; with it, in
// an order of its own for each (seed, data epoch). A value type; thread-safe.
class SequenceOrder {
 public:
  // REQUIRES: sequence_count >= 1, global_batch >= 1.
  SequenceOrder(int64_t sequence_count, int64_t global_batch, bool shuffle, uint64_t seed);

  int64_t SequenceIndex(int64_t step_index, int64_t sample) const;

 private:
  int64_t Permute(int64_t position, int64_t data_epoch) const;

  int64_t sequence_count_;
  int64_t global_batch_;
  bool shuffle_;
  uint64_t seed_;
  int half_bits_;  // of the smallest even-width power of two that holds sequence_count
};

}  // namespace harmony::io
