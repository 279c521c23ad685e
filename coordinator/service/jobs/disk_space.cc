#include "coordinator/service/jobs/disk_space.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/dtype.h"
#include "common/io/free_space.h"
#include "common/io/hf_export.h"

namespace harmony::service {
namespace {

// Headers, config.json, manifest; tokenizers are rarely larger.
constexpr Bytes kBesidesTensors = KiB(64);

}  // namespace

DiskNeed DiskNeedOf(const job::JobSpec& job, const model::ModelSpec& model,
                    const io::WeightMap& weights, const std::vector<int64_t>& there) {
  DiskNeed need;
  need.final_model = need.checkpoint = kBesidesTensors;
  const int64_t values = 1 + job::MomentsOf(job);  // parameters and moments
  const std::optional<DType> type = io::ExportTypeOf(job);
  const io::WeightMap final_weights = type ? weights.WithType(model, *type) : weights;
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      need.checkpoint += SizeOf(DType::kF32) * (tensor.elements * values);
      need.final_model += SizeOf(final_weights.of(tensor).dtype) * tensor.elements;
    }
  }
  const int64_t newest = there.empty() ? 0 : there.front();
  if (newest >= job.max_steps && !there.empty()) return need;
  int64_t to_come = 1;  // the last
  if (job.save_steps > 0) to_come += (job.max_steps - 1) / job.save_steps - newest / job.save_steps;
  const int64_t now = static_cast<int64_t>(there.size());
  // A new one is written before the oldest is removed.
  const int64_t most = std::min<int64_t>(now + to_come, job.save_total_limit + 1);
  need.checkpoints = std::max<int64_t>(1, most - now);
  return need;
}

absl::Status CheckDiskSpace(const std::string& output_dir, const DiskNeed& need) {
  const std::optional<io::FreeSpace> space = io::FreeSpaceAt(output_dir);
  if (!space || need.total() <= space->bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "output_dir: ", output_dir, ": the job is going to write ", FormatBytesExact(need.total()),
      " there (", need.checkpoints, " checkpoints of ", FormatBytesExact(need.checkpoint),
      " and final/ with ", FormatBytesExact(need.final_model), "), ",
      FormatBytesExact(space->bytes), " are free: ", FormatBytesExact(need.total() - space->bytes),
      " are missing. Free some, lower save_total_limit, or choose another output_dir"));
}

}  // namespace harmony::service
