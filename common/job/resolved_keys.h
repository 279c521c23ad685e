#pragma once

// What `auto` keys of a job were resolved to when its run began. Together with the result keys they
// fix every bit of the run, and so they stay as they are for its life: run.json and the manifests
// of checkpoints keep them. PURE.

#include <cstdint>
#include <string>

#include "common/base/dtype.h"

namespace harmony::job {

struct ResolvedKeys {
  int64_t micro_batch_size = 0;
  int virtual_replicas = 1;
  DType gradient_dtype = DType::kF32;

  bool operator==(const ResolvedKeys&) const = default;
};

// "micro_batch_size 2, virtual_replicas 1, gradient_dtype fp32"
std::string DebugString(const ResolvedKeys& keys);

}  // namespace harmony::job
