#include "common/job/resolved_keys.h"

#include "absl/strings/str_cat.h"

namespace harmony::job {

std::string DebugString(const ResolvedKeys& keys) {
  return absl::StrCat("micro_batch_size ", keys.micro_batch_size, ", virtual_replicas ",
                      keys.virtual_replicas, ", gradient_dtype ",
                      PrecisionName(keys.gradient_dtype),
                      keys.sum_order == SumOrder::kPairwise ? "" : ", replicas added in turn");
}

absl::Status CheckSumOrder(const ResolvedKeys& keys) {
  if (keys.sum_order == SumOrder::kPairwise) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the gradients of virtual_replicas: ", keys.virtual_replicas,
      " were added up one after the other, which this version does pairwise: the run cannot go on "
      "with the same results. Go on with the version that began it, or begin a new run from its "
      "weights (`harmony export`, then init: pretrained)"));
}

}  // namespace harmony::job
