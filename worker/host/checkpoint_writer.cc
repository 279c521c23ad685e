#include "worker/host/checkpoint_writer.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/io/checkpoint_details.h"
#include "common/io/checkpoint_manifest.h"
#include "common/io/file.h"
#include "common/io/hf_export.h"
#include "common/io/run_file.h"
#include "common/io/safetensors_writer.h"
#include "common/job/job_file.h"
#include "worker/optimizer/kernels.h"

namespace harmony::worker {
namespace {

// FailedPrecondition unless everything that is saved is committed at `version`.
absl::Status CheckCommitted(const HostContext& context, int64_t version) {
  for (int block = 0; block < context.num_blocks(); ++block) {
    for (int part = 0; part <= context.moments(); ++part) {
      const auto view = context.Committed(static_cast<command::ObjectKind>(part), block,
                                          static_cast<uint64_t>(version));
      if (!view.ok()) return view.status();
    }
  }
  return absl::OkStatus();
}

io::TensorValues ParametersOf(const HostContext& context) {
  return [&context](const model::ParamBlock& block, const model::TensorSpec& tensor) {
    const int index = static_cast<int>(&block - context.job.model.blocks.data());
    return absl::Span<const std::byte>(
        context.DataOf(command::ObjectKind::kParameter, index, tensor));
  };
}

absl::Status WriteMoments(const HostContext& context, const std::string& path) {
  const std::vector<std::string> names = job::MomentNames(context.job.spec);
  std::vector<io::TensorToWrite> tensors;
  for (const std::string& name : names) {
    for (const model::ParamBlock& block : context.job.model.blocks) {
      for (const model::TensorSpec& tensor : block.tensors) {
        if (tensor.role != model::TensorRole::kTrained) continue;
        tensors.push_back({absl::StrCat(name, ".", tensor.name), DType::kF32, tensor.shape});
      }
    }
  }
  HARMONY_ASSIGN_OR_RETURN(io::SafetensorsWriter writer,
                           io::SafetensorsWriter::Create(path, tensors));
  writer.set_cancelled(context.job.cancelled);
  for (size_t i = 0; i < names.size(); ++i) {
    const command::ObjectKind kind = HostContext::MomentKind(static_cast<int>(i));
    for (int block = 0; block < context.num_blocks(); ++block) {
      for (const model::TensorSpec& tensor : context.block(block).tensors) {
        if (tensor.role != model::TensorRole::kTrained) continue;
        HARMONY_RETURN_IF_ERROR(writer.WriteTensor(absl::StrCat(names[i], ".", tensor.name),
                                                   context.Values(kind, block, tensor)));
      }
    }
  }
  return writer.Finish();
}

io::CheckpointManifest ManifestOf(const HostContext& context, int64_t version) {
  const HostJob& job = context.job;
  io::CheckpointDetails details;
  details.data_position = version * job.plan.global_batch();
  details.job_json = job.job_json;
  details.weight_map_json = context.weights.ToJson();
  details.source_directory = context.source_directory;
  details.compute_threads = job.spec.compute_threads;
  details.cpu_capability = ToString(BestIsa());
  details.seed = job.spec.seed;
  if (const absl::StatusOr<io::RunFile> run = io::ReadRunFile(job.spec.output_dir); run.ok()) {
    details.data = run->data;
  }
  io::CheckpointManifest manifest;
  manifest.step = version;
  manifest.result_keys = job::ResultKeysText(job.spec);
  manifest.resolved = job.plan.resolved();
  manifest.details_json = io::ToJson(details);
  return manifest;
}

absl::StatusOr<bool> IsThereAlready(const HostContext& context, const std::string& path,
                                    const io::CheckpointManifest& manifest) {
  const absl::StatusOr<io::CheckpointManifest> found = io::ReadManifest(path);
  if (!found.ok() || found->step != manifest.step ||
      !job::DifferingKeys(found->result_keys, manifest.result_keys).empty() ||
      found->resolved != manifest.resolved) {
    return false;
  }
  absl::Status verified = io::VerifyCheckpoint(path, context.job.cancelled).status();
  if (absl::IsAborted(verified)) return verified;
  return verified.ok();
}

absl::Status WriteNewCheckpoint(const HostContext& context, const std::string& path,
                                const io::CheckpointManifest& manifest) {
  HARMONY_ASSIGN_OR_RETURN(io::AtomicDirectory target, io::AtomicDirectory::Create(path));
  const std::string& folder = target.temporary_path();
  HARMONY_RETURN_IF_ERROR(
      io::WriteModelFiles(folder, context.job.config_json, context.source_directory));
  HARMONY_RETURN_IF_ERROR(
      io::WriteWeights(io::JoinPath(folder, "model.safetensors"), context.job.model,
                       io::WeightMap::ForNewModel(context.job.model), ParametersOf(context),
                       io::WeightsFor::kCheckpoint, context.job.cancelled));
  if (context.moments() > 0) {
    HARMONY_RETURN_IF_ERROR(WriteMoments(context, io::JoinPath(folder, "optimizer.safetensors")));
  }
  HARMONY_RETURN_IF_ERROR(io::WriteManifest(folder, manifest, context.job.cancelled));
  // Updates that ran meanwhile would have torn it.
  HARMONY_RETURN_IF_ERROR(CheckCommitted(context, manifest.step));
  return target.Commit();
}

}  // namespace

absl::Status WriteCheckpoint(const HostContext& context, int64_t version) {
  HARMONY_RETURN_IF_ERROR(CheckCommitted(context, version));
  const std::string& output_dir = context.job.spec.output_dir;
  const std::string path = io::JoinPath(output_dir, io::CheckpointName(version));
  const io::CheckpointManifest manifest = ManifestOf(context, version);
  HARMONY_ASSIGN_OR_RETURN(const bool there, IsThereAlready(context, path, manifest));
  if (!there) {
    HARMONY_RETURN_IF_ERROR_CTX(WriteNewCheckpoint(context, path, manifest),
                                absl::StrCat("writing ", path));
  }
  // Where the job names a checkpoint of its own, the same command wants it again.
  return io::PruneCheckpoints(output_dir, context.job.spec.save_total_limit, version,
                              context.job.spec.resume_from_checkpoint);
}

absl::Status WriteFinalModel(const HostContext& context, int64_t version) {
  HARMONY_RETURN_IF_ERROR(CheckCommitted(context, version));
  const std::string path = io::JoinPath(context.job.spec.output_dir, "final");
  const std::optional<DType> type = io::ExportTypeOf(context.job.spec);
  const io::WeightMap& source = context.weights;
  const auto write = [&](std::optional<DType> as) {
    return io::ExportModel(path, context.job.model,
                           as ? source.WithType(context.job.model, *as) : source,
                           ParametersOf(context), context.job.config_json, context.source_directory,
                           context.job.cancelled);
  };
  absl::Status written = write(type);
  if (absl::IsOutOfRange(written)) {
    spdlog::warn("{} is written in fp32: {}", path, std::string(written.message()));
    written = write(DType::kF32);
  }
  HARMONY_RETURN_IF_ERROR_CTX(written, absl::StrCat("writing ", path));
  return CheckCommitted(context, version);
}

void RemovePartialCheckpoints(const std::string& output_dir) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(output_dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!absl::StrContains(name, io::kPartialInfix)) continue;
    if (!absl::StartsWith(name, "checkpoint-") && !absl::StartsWith(name, "final.")) continue;
    std::error_code ignored;
    std::filesystem::remove_all(it->path(), ignored);
  }
}

}  // namespace harmony::worker
