#include "common/model/layer_cost.h"

#include <algorithm>

namespace harmony::model {

BytesBySamples BytesBySamples::Of(Bytes per_sample, Bytes fixed) {
  BytesBySamples size;
  size.phases.push_back({per_sample, fixed, Bytes(), Bytes(), Bytes()});
  return size;
}

Bytes BytesBySamples::At(int64_t samples, int threads) const {
  if (!table.empty()) {
    const auto at = std::lower_bound(table.begin(), table.end(), samples,
                                     [](const auto& entry, int64_t n) { return entry.first < n; });
    return at != table.end() && at->first == samples ? at->second : kMostBytes;
  }
  Bytes most;
  for (const Phase& phase : phases) {
    const Bytes capped = std::min(TimesSaturated(phase.capped_per_sample, samples), phase.cap);
    const Bytes fixed = phase.fixed + phase.per_thread * threads + capped;
    most = std::max(most, SumSaturated(TimesSaturated(phase.per_sample, samples), fixed));
  }
  return most;
}

BytesBySamples GpuAttentionSums(Bytes of_sample, Bytes of_head) {
  return BytesBySamples::Of(of_sample, TimesSaturated(of_head, kMostMultiprocessors));
}

LayerWorkspace LayerWorkspace::WithThreads(int threads) const {
  LayerWorkspace all = *this;
  for (BytesBySamples* size :
       {&all.forward, &all.kept, &all.backward, &all.keeping_forward, &all.kept_backward}) {
    for (BytesBySamples::Phase& phase : size->phases) phase.per_thread = phase.per_thread * threads;
  }
  return all;
}

}  // namespace harmony::model
