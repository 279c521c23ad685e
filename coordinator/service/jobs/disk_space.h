#pragma once

// What a job is going to write to its output directory, and whether there is room for it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/weight_map.h"
#include "common/job/job_spec.h"
#include "common/model/model_spec.h"

namespace harmony::service {

struct DiskNeed {
  Bytes checkpoint;         // of one
  int64_t checkpoints = 0;  // at most so many more than there are now, at any moment
  Bytes final_model;
  Bytes total() const { return checkpoint * checkpoints + final_model; }
};

// `weights`: what final/ is written as. `there`: steps of the checkpoints that there are, newest
// first.
DiskNeed DiskNeedOf(const job::JobSpec& job, const model::ModelSpec& model,
                    const io::WeightMap& weights, const std::vector<int64_t>& there);

// InvalidArgument says how much is missing on the file system of `output_dir`, which need not exist
// yet. File systems that do not say how much is free are let pass.
absl::Status CheckDiskSpace(const std::string& output_dir, const DiskNeed& need);

}  // namespace harmony::service
