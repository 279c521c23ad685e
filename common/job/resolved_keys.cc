#include "common/job/resolved_keys.h"

#include "absl/strings/str_cat.h"

namespace harmony::job {

std::string DebugString(const ResolvedKeys& keys) {
  return absl::StrCat("micro_batch_size ", keys.micro_batch_size, ", virtual_replicas ",
                      keys.virtual_replicas, ", gradient_dtype ",
                      PrecisionName(keys.gradient_dtype));
}

}  // namespace harmony::job
