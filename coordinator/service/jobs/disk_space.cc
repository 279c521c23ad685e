#include "coordinator/service/jobs/disk_space.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/dtype.h"

namespace harmony::service {
namespace {

// Headers, config.json, manifest; tokenizers are rarely larger.
constexpr Bytes kBesidesTensors = KiB(64);

std::optional<Bytes> FreeSpaceAt(const std::string& output_dir) {
  std::error_code error;
  std::filesystem::path folder = output_dir;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return Bytes(static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize));
}

}  // namespace

DiskNeed DiskNeedOf(const job::JobSpec& job, const model::ModelSpec& model,
                    const io::WeightMap& weights, const std::vector<int64_t>& there) {
  DiskNeed need;
  need.final_model = need.checkpoint = kBesidesTensors;
  const int64_t values = 1 + job::MomentsOf(job);  // parameters and moments
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      need.checkpoint += SizeOf(DType::kF32) * (tensor.elements * values);
      need.final_model += SizeOf(weights.of(tensor).dtype) * tensor.elements;
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
  const std::optional<Bytes> free = FreeSpaceAt(output_dir);
  if (!free || need.total() <= *free) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "output_dir: ", output_dir, ": the job is going to write ", FormatBytesExact(need.total()),
      " there (", need.checkpoints, " checkpoints of ", FormatBytesExact(need.checkpoint),
      " and final/ with ", FormatBytesExact(need.final_model), "), ", FormatBytesExact(*free),
      " are free: ", FormatBytesExact(need.total() - *free),
      " are missing. Free some, lower save_total_limit, or choose another output_dir"));
}

}  // namespace harmony::service
