#pragma once

// What `auto` keys of a job were resolved to when its run began. Together with the result keys they
// fix every bit of the run, and so they stay as they are for its life: run.json and the manifests
// of checkpoints keep them. PURE.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/dtype.h"

namespace harmony::job {

// How the gradients of replicas are added up: one after the other, as older
// versions did, or by the tree of common/model/sum_tree.h.
enum class SumOrder { kInTurn, kPairwise };

struct ResolvedKeys {
  int64_t micro_batch_size = 0;
  int virtual_replicas = 1;
  DType gradient_dtype = DType::kF32;
  SumOrder sum_order = SumOrder::kPairwise;  // also where one replica leaves nothing to add

  bool operator==(const ResolvedKeys&) const = default;
};

// "micro_batch_size 2, virtual_replicas 1, gradient_dtype fp32", and the order of sums where it is
// none of this program's.
std::string DebugString(const ResolvedKeys& keys);

// FailedPrecondition where a run with these keys cannot go on with the same bits, since this
// program adds up in another order. To be read, exported or shown it need not go on.
absl::Status CheckSumOrder(const ResolvedKeys& keys);

}  // namespace harmony::job
