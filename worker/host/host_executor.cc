#include "worker/host/host_executor.h"

#include <sched.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/checkpoint_details.h"
#include "common/io/checkpoint_manifest.h"
#include "common/io/derived_inputs.h"
#include "common/io/file.h"
#include "common/io/hf_directory.h"
#include "common/io/run_file.h"
#include "common/io/sequence_order.h"
#include "common/io/training_data.h"
#include "common/job/goes_on.h"
#include "common/job/job_file.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"
#include "worker/host/checkpoint_writer.h"
#include "worker/host/host_context.h"
#include "worker/host/initializer.h"
#include "worker/optimizer/protected_update.h"

namespace harmony::worker {
namespace {

int UsableCores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// Of the checkpoint that the job started from. When that one has been pruned since, a newer one of
// the same run tells the same names; its parameters are in the segment then.
absl::StatusOr<io::CheckpointManifest> FindManifest(const HostJob& job) {
  const absl::StatusOr<io::CheckpointManifest> first = io::ReadManifest(job.resume_checkpoint);
  if (first.ok()) return first;
  const std::string ours = job::ResultKeysText(job.spec);
  for (int64_t step : io::ListCheckpoints(job.spec.output_dir)) {
    if (step <= job.first_step) break;
    const absl::StatusOr<io::CheckpointManifest> newer =
        io::ReadManifest(io::JoinPath(job.spec.output_dir, io::CheckpointName(step)));
    if (newer.ok() && job::CheckGoesOn(newer->result_keys, job.spec, ours, step).ok()) return newer;
  }
  return first;
}

// The names for the export, and where tokenizer files come from.
absl::Status FindSource(HostContext& context) {
  const HostJob& job = context.job;
  const absl::StatusOr<io::ModelSource> source = io::OpenModelSource(job.spec.model_name_or_path);
  if (source.ok()) context.source_directory = source->directory;
  if (!job.resume_checkpoint.empty()) {
    const std::string& path = job.resume_checkpoint;
    HARMONY_ASSIGN_OR_RETURN(const io::CheckpointManifest manifest, FindManifest(job));
    if (manifest.resolved != job.plan.resolved()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": was made with ", DebugString(manifest.resolved), ", the plan has ",
                       DebugString(job.plan.resolved()), ": results would differ"));
    }
    HARMONY_ASSIGN_OR_RETURN(const io::CheckpointDetails details,
                             io::CheckpointDetailsFromJson(manifest.details_json, path));
    if (!source.ok()) context.source_directory = details.source_directory;
    HARMONY_ASSIGN_OR_RETURN(context.weights,
                             io::WeightMap::FromJson(details.weight_map_json, job.model, path));
    return absl::OkStatus();
  }
  HARMONY_RETURN_IF_ERROR(source.status());
  context.weights = io::WeightMap::ForNewModel(job.model);
  if (job.spec.init == job::InitMode::kPretrained) {
    HARMONY_ASSIGN_OR_RETURN(const io::CheckpointReader reader, io::OpenWeights(*source));
    HARMONY_ASSIGN_OR_RETURN(context.weights, io::WeightMap::Match(job.model, reader));
  }
  return absl::OkStatus();
}

using DataOrError = absl::StatusOr<std::unique_ptr<io::TrainingData>>;
DataOrError AsMissing(DataOrError data) {
  // They were in order at submission: what is wrong with the file now is not the job's fault.
  if (absl::IsInvalidArgument(data.status())) return absl::DataLossError(data.status().message());
  return data;
}

}  // namespace

absl::StatusOr<command::ObjectView> HostContext::Committed(command::ObjectKind kind, int index,
                                                           uint64_t version, int part) const {
  const command::ObjectKey key{kind, index, part};
  HARMONY_ASSIGN_OR_RETURN(const command::ObjectView view, segment.ReadRecord(table.IndexOf(key)));
  if (view.state != command::ObjectState::kClean || view.version != version) {
    return absl::FailedPreconditionError(
        absl::StrCat(DebugString(key), " is not committed at version ", version, ": state ",
                     static_cast<int>(view.state), ", version ", view.version));
  }
  return view;
}

class HostExecutor::Impl {
 public:
  Impl(HostContext context, std::unique_ptr<io::TrainingData> data, io::SequenceOrder order,
       Bytes extent, int threads)
      : context_(std::move(context)),
        data_(std::move(data)),
        order_(order),
        extent_(extent),
        compute_pool_(threads),
        io_pool_(threads) {}

  absl::Status Execute(const command::HostTask& task, const command::CommandHeader& header) {
    const int64_t step = header.step;
    switch (task.kind) {
      case command::HostTaskKind::kInitialize:
        return InitializeParameters(context_, io_pool_);
      case command::HostTaskKind::kLoadBatch:
        return LoadBatch(task, step);
      case command::HostTaskKind::kStepScalars:
        return SumLosses(task, step);
      case command::HostTaskKind::kNorm:
        return Norm(task, step);
      case command::HostTaskKind::kClip:
        return Clip(step);
      case command::HostTaskKind::kUpdate:
        return Update(task, step);
      case command::HostTaskKind::kCheckpoint:
        return Checkpoint(step + 1);
    }
    return absl::InternalError("unknown host task");
  }

 private:
  const HostJob& job() const { return context_.job; }
  static uint64_t VersionOf(int64_t step) { return static_cast<uint64_t>(step + 1); }
  static int ParityOf(int64_t step) { return static_cast<int>(step & 1); }

  // Replaces an object: frees its record, has `fill` write the new data, commits. Nothing is done
  // when it is committed already at that version and place.
  template <typename Fn>
  absl::Status Replace(const command::ObjectView& view, Fn&& fill) {
    const int record = context_.table.IndexOf(view.key);
    HARMONY_ASSIGN_OR_RETURN(const command::ObjectView old, context_.segment.ReadRecord(record));
    if (old.state == command::ObjectState::kClean && old.version == view.version &&
        old.offset == view.offset && old.size == view.size) {
      return absl::OkStatus();
    }
    if (view.offset < Bytes() || view.offset + view.size > extent_) {
      return absl::InternalError(absl::StrCat(DebugString(view.key), " at ", view.offset.count(),
                                              " does not lie in the job's arena"));
    }
    context_.segment.SetFree(record);
    HARMONY_RETURN_IF_ERROR(fill(context_.segment.Arena(view.offset)));
    context_.segment.Publish(record, view);
    return absl::OkStatus();
  }

  absl::Status ReadSamples(int64_t step, std::vector<std::byte*> places) {
    for (int64_t s = 0; s < job().plan.global_batch(); ++s) {
      const uint64_t key = io::SampleKey(job().spec.seed, step, s);
      HARMONY_RETURN_IF_ERROR(data_->ReadSample(order_.SequenceIndex(step, s), key, places));
      for (size_t i = 0; i < places.size(); ++i) {
        places[i] += job().model.inputs[i].tensor.per_sample().count();
      }
    }
    return absl::OkStatus();
  }

  // Into `inputs`, what the data bring of a step. Files that were written to meanwhile still have
  // to begin with what the run began with. Then it is read once more: they may have been something
  // else on the way. Not until nothing is written: tokens may be appended all the time.
  absl::Status ReadBatch(int64_t step, const std::vector<std::byte*>& inputs) {
    for (int tries = 0; tries < 2; ++tries) {
      // One that could not be read may have been put back as another file of that name.
      if (data_ == nullptr) {
        HARMONY_ASSIGN_OR_RETURN(data_, AsMissing(io::OpenDataOfRun(job().spec, job().model)));
      }
      const absl::Status read = ReadSamples(step, inputs);
      if (read.ok() && data_->IsUnchanged()) return read;
      data_.reset();
      HARMONY_RETURN_IF_ERROR(read);
    }
    HARMONY_ASSIGN_OR_RETURN(data_, AsMissing(io::OpenDataOfRun(job().spec, job().model)));
    return absl::OkStatus();
  }

  absl::Status LoadBatch(const command::HostTask& task, int64_t step) {
    const int64_t samples = job().plan.global_batch();
    const model::BatchLayout layout = model::LayOutBatch(job().model, samples);
    const command::ObjectView view{{command::ObjectKind::kBatch, ParityOf(step), 0},
                                   task.offset,
                                   layout.size,
                                   VersionOf(step),
                                   command::ObjectState::kClean};
    return Replace(view, [&](std::byte* data) {
      std::vector<std::byte*> inputs;
      for (Bytes offset : layout.offsets) inputs.push_back(data + offset.count());
      HARMONY_RETURN_IF_ERROR(ReadBatch(step, inputs));
      return io::FillDerivedInputs(job().model, job().spec.seed, step, samples, inputs);
    });
  }

  // Those of the microbatches of a part; their labels are counted.
  absl::Status AppendLosses(int part, command::StepScalars* scalars,
                            std::vector<double>& losses) const {
    HARMONY_ASSIGN_OR_RETURN(
        const command::ObjectView loss,
        context_.Committed(command::ObjectKind::kLoss, 0, VersionOf(scalars->step), part));
    const auto* slots =
        reinterpret_cast<const command::LossSlot*>(context_.segment.Arena(loss.offset));
    for (int m = 0; m < job().plan.loss_microbatches(); ++m) {
      if (!std::isfinite(slots[m].loss_sum)) {
        return absl::InternalError(absl::StrCat("the loss of step ", scalars->step + 1,
                                                ", microbatch ", losses.size(), " is not finite (",
                                                slots[m].loss_sum, ")"));
      }
      losses.push_back(slots[m].loss_sum);
      scalars->label_count += slots[m].label_count;
    }
    return absl::OkStatus();
  }

  absl::Status SumLosses(const command::HostTask& task, int64_t step) {
    const command::ObjectView view{{command::ObjectKind::kStepScalars, ParityOf(step), 0},
                                   task.offset,
                                   Bytes(sizeof(command::StepScalars)),
                                   VersionOf(step),
                                   command::ObjectState::kClean};
    return Replace(view, [&](std::byte* data) {
      command::StepScalars scalars;
      scalars.step = step;
      scalars.learning_rate = job::LearningRateAt(job().spec, step);
      scalars.tokens = job().plan.global_batch() * job().plan.sequence_length;
      std::vector<double> losses;
      for (int part = 0; part < job().plan.loss_parts(); ++part) {
        HARMONY_RETURN_IF_ERROR(AppendLosses(part, &scalars, losses));
      }
      scalars.loss_sum = model::SumOfMicrobatches(losses, job().plan.replicas);
      std::memcpy(data, &scalars, sizeof(scalars));
      return absl::OkStatus();
    });
  }

  absl::Status NonFiniteGradient(int block, int64_t step) const {
    return absl::InternalError(absl::StrCat("the gradient of '", context_.block(block).name,
                                            "' of step ", step + 1, " is not finite"));
  }

  absl::Status Norm(const command::HostTask& task, int64_t step) {
    const command::ObjectView view{{command::ObjectKind::kNorm, task.block, 0},
                                   task.offset,
                                   Bytes(sizeof(command::NormSlot)),
                                   VersionOf(step),
                                   command::ObjectState::kClean};
    return Replace(view, [&](std::byte* data) {
      const model::ParamBlock& block = context_.block(task.block);
      HARMONY_ASSIGN_OR_RETURN(
          const BlockGradient gradient,
          GradientFromRecords(context_.segment, block, task.gradient_records, VersionOf(step)));
      command::NormSlot slot;
      slot.squared_norm = BlockSquaredNorm(block, gradient, compute_pool_);
      if (!std::isfinite(slot.squared_norm)) return NonFiniteGradient(task.block, step);
      std::memcpy(data, &slot, sizeof(slot));
      return absl::OkStatus();
    });
  }

  absl::StatusOr<command::StepScalars*> ScalarsOf(int64_t step) const {
    HARMONY_ASSIGN_OR_RETURN(
        const command::ObjectView view,
        context_.Committed(command::ObjectKind::kStepScalars, ParityOf(step), VersionOf(step)));
    return reinterpret_cast<command::StepScalars*>(context_.segment.Arena(view.offset));
  }

  absl::Status Clip(int64_t step) {
    HARMONY_ASSIGN_OR_RETURN(command::StepScalars* const scalars, ScalarsOf(step));
    std::vector<double> squares;
    for (int block = 0; block < context_.num_blocks(); ++block) {
      HARMONY_ASSIGN_OR_RETURN(
          const command::ObjectView view,
          context_.Committed(command::ObjectKind::kNorm, block, VersionOf(step)));
      squares.push_back(
          reinterpret_cast<const command::NormSlot*>(context_.segment.Arena(view.offset))
              ->squared_norm);
      if (!std::isfinite(squares.back())) return NonFiniteGradient(block, step);
    }
    // Repeated after a kill it writes the same values; `clip_ready` comes last.
    scalars->grad_norm = GradientNorm(squares);
    scalars->clip_coefficient = ClipCoefficient(scalars->grad_norm, job().spec.max_grad_norm);
    std::atomic_ref<uint64_t>(scalars->clip_ready).store(1, std::memory_order_release);
    return absl::OkStatus();
  }

  absl::Status Update(const command::HostTask& task, int64_t step) {
    if (context_.Committed(command::ObjectKind::kParameter, task.block, VersionOf(step)).ok()) {
      return absl::OkStatus();  // done before a kill; the step's scalars may be gone
    }
    HARMONY_ASSIGN_OR_RETURN(const command::StepScalars* const scalars, ScalarsOf(step));
    ProtectedUpdate update;
    update.block = task.block;
    update.hyper.step = step + 1;
    update.hyper.learning_rate = scalars->learning_rate;
    if (job().plan.clip) {
      if (scalars->clip_ready == 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("update of '", context_.block(task.block).name, "' in step ", step + 1,
                         " before the clip coefficient is known"));
      }
      update.hyper.clip_coefficient = scalars->clip_coefficient;
    }
    update.gradient_records = task.gradient_records;
    absl::Status status = UpdateObject(context_.segment, job().model, context_.table,
                                       SettingsOf(job().spec), update, compute_pool_);
    return absl::IsOutOfRange(status) ? NonFiniteGradient(task.block, step) : status;
  }

  absl::Status Checkpoint(int64_t version) {
    HARMONY_RETURN_IF_ERROR(WriteCheckpoint(context_, version));
    if (version != job().spec.max_steps) return absl::OkStatus();
    return WriteFinalModel(context_, version);
  }

  const HostContext context_;
  // Of the thread of host_io; null: they must be opened again.
  std::unique_ptr<io::TrainingData> data_;
  const io::SequenceOrder order_;
  const Bytes extent_;
  ThreadPool compute_pool_;  // of the thread of host_compute
  ThreadPool io_pool_;       // of the thread of host_io
};

HostExecutor::HostExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HostExecutor::~HostExecutor() = default;

absl::StatusOr<std::unique_ptr<HostExecutor>> HostExecutor::Create(ipc::Segment& segment,
                                                                   HostJob job) {
  HARMONY_ASSIGN_OR_RETURN(const ipc::SegmentJob allocated, segment.ReadJob());
  const command::ObjectTableLayout table(job.model, job.plan.num_microbatches, job.plan.replicas);
  if (allocated.record_count < table.size() ||
      allocated.cursor_count < ipc::CursorCount(job.model) ||
      allocated.extent < command::PersistentBytes(job.model, job::MomentsOf(job.spec))) {
    return absl::InternalError("the shared segment was not allocated for this job");
  }
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<io::TrainingData> data,
                           AsMissing(io::OpenDataOfRun(job.spec, job.model)));
  const int64_t samples = data->sample_count();
  if (samples < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        data->where(), ": has no whole sample, of sequence_length ", job.plan.sequence_length));
  }
  const io::SequenceOrder order(samples, job.plan.global_batch(), job.spec.shuffle, job.spec.seed);
  RemovePartialCheckpoints(job.spec.output_dir);
  const int threads = job.threads > 0 ? job.threads : UsableCores();
  HostContext context{segment, std::move(job), table, io::WeightMap(), ""};
  HARMONY_RETURN_IF_ERROR(FindSource(context));
  return std::unique_ptr<HostExecutor>(new HostExecutor(std::make_unique<Impl>(
      std::move(context), std::move(data), order, allocated.extent, threads)));
}

absl::Status HostExecutor::Execute(const command::HostTask& task,
                                   const command::CommandHeader& header) {
  return impl_->Execute(task, header);
}

}  // namespace harmony::worker
