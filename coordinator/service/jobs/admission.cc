#include "coordinator/service/jobs/admission.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/checkpoint_manifest.h"
#include "common/io/checkpoint_reader.h"
#include "common/io/file.h"
#include "common/io/hf_directory.h"
#include "common/io/model_graphs.h"
#include "common/io/weight_map.h"
#include "common/job/job_check.h"
#include "common/job/job_file.h"
#include "common/job/parameter_rules.h"
#include "common/plan/plan_json.h"
#include "common/profile/plausible.h"
#include "common/profile/profile_estimate.h"
#include "common/profile/profile_json.h"
#include "common/runtime/run_both.h"
#include "coordinator/dispatch/costs/profiled_costs.h"
#include "coordinator/planner/host_memory_error.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/jobs/disk_space.h"
#include "coordinator/service/jobs/notes.h"

namespace harmony::service {
namespace {

// The data of a run that goes on with a file that was appended to, as its job says it may be.
absl::Status TakeAppended(AdmittedJob* admitted) {
  const job::JobSpec& job = admitted->spec;
  const io::DataFingerprint before = *admitted->output.data;
  const std::vector<int64_t> checkpoints = io::ListCheckpoints(job.output_dir);
  const int64_t steps = checkpoints.empty() ? 0 : checkpoints.front();
  HARMONY_RETURN_IF_ERROR(io::CheckDataAppended(job, before, steps));
  std::vector<io::RunExtension>& extensions = admitted->output.extensions;
  if (!std::exchange(admitted->output.extended, true)) extensions.push_back({steps, {}});
  extensions.back().changes.push_back(
      absl::StrCat("data (", before.bytes, " -> ", admitted->data.bytes, " bytes)"));
  return absl::OkStatus();
}

// The data are fixed when a run begins: one that goes on must find them as they were, but for what
// was appended by intent.
absl::Status CheckData(bool may_be_appended, AdmittedJob* admitted) {
  const job::JobSpec& job = admitted->spec;
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<io::TrainingData> data,
                           io::OpenTrainingData(job, admitted->model));
  HARMONY_ASSIGN_OR_RETURN(admitted->data, data->Fingerprint());
  if (admitted->output.same_run && !admitted->output.must_move) {
    const absl::Status unchanged =
        io::CheckDataUnchanged(admitted->output.data, data->where(), admitted->data);
    const bool appended = !unchanged.ok() && may_be_appended;
    HARMONY_RETURN_IF_ERROR(appended ? TakeAppended(admitted) : unchanged);
  }
  return data->Validate(job.global_batch_size);
}

absl::StatusOr<io::WeightMap> CheckWeights(const job::JobSpec& job, const io::ModelSource& source,
                                           const model::ModelSpec& model) {
  if (job.init != job::InitMode::kPretrained) {
    if (std::holds_alternative<model::ExportedModel>(source.architecture)) {
      return absl::InvalidArgumentError(
          "init: random: an exported model begins with the weights of its directory; give init: "
          "pretrained");
    }
    return io::WeightMap::ForNewModel(model);
  }
  if (source.directory.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("init: pretrained needs a directory with *.safetensors, ",
                     job.model_name_or_path, " is a preset"));
  }
  HARMONY_ASSIGN_OR_RETURN(const io::CheckpointReader reader, io::OpenWeights(source));
  HARMONY_ASSIGN_OR_RETURN(io::WeightMap map, io::WeightMap::Match(model, reader));
  // transformers ties tensors only when they are equal.
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      for (const std::string& alias : tensor.aliases) {
        if (reader.Find(alias) == nullptr) continue;
        const std::string& stored = map.of(tensor).name;
        HARMONY_ASSIGN_OR_RETURN(const bool same, reader.SameBytes(stored, alias));
        if (same) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(reader.PathOf(alias), ": '", alias, "' differs from '", stored,
                         "', but the model ties them: set tie_word_embeddings to false in its "
                         "config.json, or export it again"));
      }
    }
  }
  return map;
}

absl::Status CheckMoments(const std::string& checkpoint, const job::JobSpec& job,
                          const model::ModelSpec& model) {
  const std::vector<std::string> names = job::MomentNames(job);
  if (names.empty()) return absl::OkStatus();
  HARMONY_ASSIGN_OR_RETURN(
      const io::CheckpointReader moments,
      io::CheckpointReader::OpenFile(io::JoinPath(checkpoint, "optimizer.safetensors")));
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      if (tensor.role != model::TensorRole::kTrained) continue;
      for (const std::string& name : names) {
        const io::SafetensorsEntry* entry = moments.Find(absl::StrCat(name, ".", tensor.name));
        if (entry != nullptr && entry->shape == tensor.shape) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(checkpoint, "/optimizer.safetensors: ", name, ".", tensor.name,
                         " is missing or of another shape than the model's"));
      }
    }
  }
  return absl::OkStatus();
}

// The checkpoint that the job names must be whole and of this model. What `auto` is, which a run
// that goes on has in `resolved` already, is as the checkpoint has it.
absl::Status CheckNamedCheckpoint(const model::ModelSpec& model, const job::JobSpec& job,
                                  std::optional<job::ResolvedKeys>* resolved) {
  if (!NamesCheckpoint(job)) return absl::OkStatus();
  const std::string& path = job.resume_from_checkpoint;
  HARMONY_ASSIGN_OR_RETURN(const io::CheckpointManifest manifest, io::VerifyNamedCheckpoint(path));
  HARMONY_ASSIGN_OR_RETURN(const io::CheckpointReader weights,
                           io::CheckpointReader::OpenFile(io::JoinPath(path, "model.safetensors")));
  HARMONY_RETURN_IF_ERROR(io::WeightMap::Match(model, weights).status());
  HARMONY_RETURN_IF_ERROR(CheckMoments(path, job, model));
  if (manifest.step > job.max_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is of step ", manifest.step, ", but max_steps is ", job.max_steps));
  }
  const job::ResolvedKeys& made = manifest.resolved;
  HARMONY_RETURN_IF_ERROR_CTX(job::CheckSumOrder(made), path);
  job::ResolvedKeys wanted = resolved->value_or(made);
  if (job.micro_batch_size != 0) wanted.micro_batch_size = job.micro_batch_size;
  if (job.virtual_replicas != 0) wanted.virtual_replicas = job.virtual_replicas;
  wanted.gradient_dtype = job.gradient_dtype.value_or(wanted.gradient_dtype);
  const auto cannot = [&](absl::string_view key, auto value) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": was made with ", key, " ", value,
                                                   ", which this job cannot use: results would "
                                                   "differ. To start from its weights only, give a "
                                                   "directory that `harmony export` makes of it, "
                                                   "with init: pretrained"));
  };
  job::JobSpec named = job;  // as if it named what the checkpoint fixes, one key after the other
  named.virtual_replicas = 0;
  const auto refused = [&] { return !job::CheckJob(named).ok(); };
  const int64_t micro = named.micro_batch_size = made.micro_batch_size;
  const bool other_size = micro < 1 || wanted.micro_batch_size != micro;
  if (other_size || refused()) return cannot("micro_batch_size", micro);
  const int replicas = named.virtual_replicas = made.virtual_replicas;
  if (wanted.virtual_replicas != replicas || refused()) return cannot("virtual_replicas", replicas);
  named.gradient_dtype = made.gradient_dtype;
  if (wanted.gradient_dtype != made.gradient_dtype || refused()) {
    return cannot("gradient_dtype", PrecisionName(made.gradient_dtype));
  }
  *resolved = made;
  return absl::OkStatus();
}

// An exported model drops what it was exported to drop; `dropout: 0` would be said in vain.
absl::Status CheckDropout(const job::JobFile& file, const std::string& path,
                          const model::ModelSpec& model) {
  const bool drops = absl::c_any_of(model.inputs, [](const model::BatchInput& input) {
    return input.source == model::InputSource::kSampleKeys;
  });
  if (!drops || !file.given.contains("dropout")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   ": dropout: the model was exported with its dropout, which a job cannot switch "
                   "off; export it again with --no-dropout (dropout=False), or remove the key"));
}

// Each microbatch goes on with the statistics that the one before left, so that they form one
// chain; replicas would be several, whose ends no sum joins.
absl::Status ResolveReplicas(const model::ModelSpec& model, job::JobSpec* job) {
  if (!model::HasStatistics(model)) return absl::OkStatus();
  if (job->virtual_replicas > 1 || job->mode == "harmony-dp") {
    return absl::InvalidArgumentError(absl::StrCat(
        job->virtual_replicas > 1 ? absl::StrCat("virtual_replicas: ", job->virtual_replicas)
                                  : "mode: harmony-dp",
        ": the model has statistics that take the microbatches of a step in order (BatchNorm); "
        "give "
        "virtual_replicas: 1 and mode: harmony-pp, or auto"));
  }
  job->virtual_replicas = 1;
  return absl::OkStatus();
}

absl::Status ResolveEpochs(double epochs, AdmittedJob* admitted) {
  job::JobSpec& job = admitted->spec;
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<io::TrainingData> data,
                           io::OpenTrainingData(job, admitted->model));
  HARMONY_ASSIGN_OR_RETURN(job.max_steps,
                           job::StepsOfEpochs(epochs, data->sample_count(), job.global_batch_size));
  admitted->notes.push_back(absl::StrFormat("epochs: %g of %d samples, %d a step, is max_steps: %d",
                                            epochs, data->sample_count(), job.global_batch_size,
                                            job.max_steps));
  return absl::OkStatus();
}

// What a request names beside the job itself.
struct JobSource {
  io::ModelSource model;
  bool data_appended = false;  // since the run began, or so the job says
};

// The job as the request says it, with the model that it names.
absl::StatusOr<JobSource> ReadRequest(const JobRequest& request, AdmittedJob* admitted) {
  const job::JobOverrides overrides{request.overrides, request.working_directory,
                                    request.absolute_paths_only};
  HARMONY_ASSIGN_OR_RETURN(const job::JobFile file,
                           job::ReadJobFile(request.yaml, request.path, overrides));
  admitted->spec = file.job;
  HARMONY_ASSIGN_OR_RETURN(io::ModelSource source,
                           io::OpenModelSource(admitted->spec.model_name_or_path));
  HARMONY_ASSIGN_OR_RETURN(
      admitted->spec.sequence_length,
      model::SequenceLengthFor(source.architecture, admitted->spec.sequence_length));
  if (const auto* exported = std::get_if<model::ExportedModel>(&source.architecture)) {
    HARMONY_RETURN_IF_ERROR(io::ReadGraphs(source.directory, *exported).status());
  }
  admitted->config_json = source.config_json;
  admitted->spec.model_content = source.content;
  HARMONY_ASSIGN_OR_RETURN(admitted->model, job::ModelOf(source.architecture, admitted->spec));
  HARMONY_RETURN_IF_ERROR(CheckDropout(file, request.path, admitted->model));
  HARMONY_RETURN_IF_ERROR(ResolveReplicas(admitted->model, &admitted->spec));
  if (file.epochs > 0) HARMONY_RETURN_IF_ERROR(ResolveEpochs(file.epochs, admitted));
  admitted->result_keys = job::ResultKeysText(admitted->spec);
  return JobSource{std::move(source), file.appended};
}

// Whether a model was exported to plan with, and not to train: its weights were left out.
bool LacksWeights(const io::ModelSource& source) {
  return std::holds_alternative<model::ExportedModel>(source.architecture) &&
         absl::IsNotFound(io::OpenWeights(source).status());
}

// How gradients may cross the link and lie in host memory, the best first.
std::vector<DType> GradientTypes(const job::JobSpec& job,
                                 const std::optional<job::ResolvedKeys>& resolved,
                                 const plan::Plan* given) {
  if (job.gradient_dtype) return {*job.gradient_dtype};
  if (resolved) return {resolved->gradient_dtype};
  if (!job.bf16) return {DType::kF32};
  if (given != nullptr) return {given->gradient_dtype};
  return {DType::kF32, DType::kBF16};
}

// Makes the plan with gradients of a type.
absl::Status PlanWith(DType gradient_dtype, const JobRequest& request,
                      const io::ModelSource& source, const plan::MachineSpec& machine,
                      const HostLimits& limits, planner::PlannerOptions options,
                      AdmittedJob* admitted) {
  HARMONY_ASSIGN_OR_RETURN(
      admitted->model, plan::ModelOn(machine, source.architecture, admitted->spec, gradient_dtype));
  options.model_of_length = [&, admitted](int64_t length) -> absl::StatusOr<model::ModelSpec> {
    HARMONY_RETURN_IF_ERROR(model::SequenceLengthFor(source.architecture, length).status());
    job::JobSpec other = admitted->spec;
    other.sequence_length = length;
    return plan::ModelOn(machine, source.architecture, other, gradient_dtype);
  };
  HARMONY_RETURN_IF_ERROR(SetCosts(request, *admitted, machine, &options));
  const Nanos begin = MonotonicClock().Now();
  HARMONY_ASSIGN_OR_RETURN(planner::PlanResult planned,
                           planner::MakePlan(admitted->model, admitted->spec, machine, options));
  absl::Status fits = CheckHost(admitted->model, planned.plan, machine, limits);
  const Bytes left = AvailableToArena(machine, limits);
  if (options.given == nullptr && planner::IsHostMemoryError(fits) && left.count() > 0) {
    // Other programs have taken what the segment was promised: with less, auto may be something
    // else.
    plan::MachineSpec smaller = machine;
    smaller.host_memory = std::min(limits.arena, left);
    auto other = planner::MakePlan(admitted->model, admitted->spec, smaller, options);
    if (other.ok() && CheckHost(admitted->model, other->plan, machine, limits).ok()) {
      planned = *std::move(other);
      fits = absl::OkStatus();
    }
  }
  HARMONY_RETURN_IF_ERROR(fits);
  planned.search_seconds = (MonotonicClock().Now() - begin).seconds();
  admitted->plan = planned.plan;
  admitted->plan_text = planner::ExplainPlan(admitted->model, planned, machine);
  admitted->plan_json = planner::PlanToJson(admitted->model, planned, machine);
  if (planned.fewer_replicas_for_host) {
    const int replicas = admitted->plan.replicas;
    admitted->notes.push_back(absl::StrCat(
        "virtual_replicas: auto is ", replicas,
        " in this run: there is too little host memory for ",
        "the gradients of more (virtual_replicas: ",
        admitted->spec.AutoReplicas(admitted->plan.microbatch_size), " says how much), so that ",
        replicas == 1 ? "devices can share no layer"
                      : absl::StrCat("no more than ", replicas, " devices can share a layer")));
  }
  return absl::OkStatus();
}

absl::Status MakePlanOf(const JobRequest& request, const io::ModelSource& source,
                        const plan::MachineSpec& machine, const HostLimits& limits,
                        AdmittedJob* admitted) {
  // `auto` was resolved when the run began, and belongs to it.
  std::optional<job::ResolvedKeys> resolved = admitted->output.resolved;
  if (absl::Status status = CheckNamedCheckpoint(admitted->model, admitted->spec, &resolved);
      !status.ok()) {
    return absl::InvalidArgumentError(  // whatever is wrong with the file, the key is to blame
        absl::StrCat("resume_from_checkpoint: ", status.message()));
  }
  planner::PlannerOptions options;
  if (resolved) {
    options.microbatch_size = resolved->micro_batch_size;
    options.replicas = resolved->virtual_replicas;
  }
  admitted->profile = request.profile;
  options.explain = request.explain;
  options.run_both = runtime::RunBoth;
  plan::Plan given;
  if (!request.plan.empty()) {
    HARMONY_ASSIGN_OR_RETURN(given, plan::ParsePlanFile(request.plan, request.plan_path));
    options.given = &given;
    options.given_path = request.plan_path;
    if (admitted->spec.replan == job::ReplanMode::kAuto) {
      admitted->spec.replan = job::ReplanMode::kSuggest;
      admitted->notes.push_back("replan: auto only suggests, since the plan is given (--plan)");
    }
  }
  absl::Status status;
  const std::vector<DType> types = GradientTypes(admitted->spec, resolved, options.given);
  for (const DType type : types) {
    status = PlanWith(type, request, source, machine, limits, options, admitted);
    if (!planner::IsHostMemoryError(status)) break;
  }
  HARMONY_RETURN_IF_ERROR(status);
  if (admitted->plan.gradient_dtype != types.front()) {
    admitted->notes.push_back(
        "gradient_dtype: auto is bf16 in this run: there is too little memory for gradients of "
        "fp32 (gradient_dtype: fp32 says how much)");
  }
  for (std::string& note : NotesOn(source, admitted->model, admitted->spec)) {
    admitted->notes.push_back(std::move(note));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdmittedJob> ReadJob(const JobRequest& request) {
  AdmittedJob admitted;
  HARMONY_RETURN_IF_ERROR(ReadRequest(request, &admitted).status());
  return admitted;
}

absl::Status SetCosts(const JobRequest& request, const AdmittedJob& admitted,
                      const plan::MachineSpec& machine, planner::PlannerOptions* options) {
  if (request.profile.empty()) return absl::OkStatus();
  HARMONY_ASSIGN_OR_RETURN(profile::Profile profile,
                           profile::ParseProfile(request.profile, request.profile_path));
  HARMONY_RETURN_IF_ERROR(profile::CheckProfile(profile, request.profile_path, admitted.model,
                                                admitted.spec, machine.devices));
  options->rough = profile.calibrated || profile.in_passing;
  if (profile.calibrated) {
    options->basis = profile::DescribeEstimate(profile, admitted.model, machine.devices);
  } else if (profile.in_passing) {
    options->basis = "calibrated: each distinct layer measured, at one microbatch size";
  }
  const profile::Spread spread = profile::SpreadOf(profile);
  if (profile::MeasuredUnderLoad(spread)) {
    absl::StrAppend(&options->basis, "; measured while something else ran (",
                    profile::DebugString(spread), "): --recalibrate measures again");
  }
  profile = profile::Plausible(std::move(profile));
  const auto factory = [&](profile::Profile measured) {
    return dispatch::ProfiledCostFactory(
        std::make_shared<const profile::Profile>(std::move(measured)), admitted.model);
  };
  if (request.explain) {
    if (auto one_more = profile::WithOneMoreDevice(profile, machine.devices)) {
      options->costs_with_one_more = factory(*std::move(one_more));
    }
  }
  options->costs = factory(std::move(profile));
  return absl::OkStatus();
}

absl::StatusOr<AdmittedJob> PlanJob(const JobRequest& request, const plan::MachineSpec& machine,
                                    const HostLimits& limits) {
  AdmittedJob admitted;
  HARMONY_ASSIGN_OR_RETURN(const JobSource source, ReadRequest(request, &admitted));
  HARMONY_RETURN_IF_ERROR(CheckData(source.data_appended, &admitted));
  if (LacksWeights(source.model)) {
    admitted.notes.push_back(
        absl::StrCat(source.model.directory,
                     " has no weights: it can be planned, but not trained; for that, export it "
                     "again without --no-weights"));
  } else {
    HARMONY_ASSIGN_OR_RETURN(admitted.weights,
                             CheckWeights(admitted.spec, source.model, admitted.model));
  }
  HARMONY_RETURN_IF_ERROR(MakePlanOf(request, source.model, machine, limits, &admitted));
  return admitted;
}

absl::StatusOr<AdmittedJob> AdmitJob(const JobRequest& request, const plan::MachineSpec& machine,
                                     const HostLimits& limits) {
  AdmittedJob admitted;
  HARMONY_ASSIGN_OR_RETURN(const JobSource source, ReadRequest(request, &admitted));
  const auto same_data = [&](const io::DataFingerprint& begun_with, int64_t steps) {
    const auto data = io::OpenTrainingData(admitted.spec, admitted.model);
    if (!data.ok()) return true;  // CheckData says what is wrong
    const absl::StatusOr<io::DataFingerprint> now = (*data)->Fingerprint();
    const bool same =
        !now.ok() || *now == begun_with ||
        (source.data_appended && io::CheckDataAppended(admitted.spec, begun_with, steps).ok());
    if (!same) {
      admitted.notes.push_back(absl::StrCat(admitted.spec.resume_from_checkpoint,
                                            " is of a run of other data (", (*data)->where(),
                                            "): this one goes on from it as another run"));
    }
    return same;
  };
  HARMONY_ASSIGN_OR_RETURN(admitted.spec.begun_from, OriginOf(admitted.spec, same_data));
  admitted.result_keys = job::ResultKeysText(admitted.spec);
  HARMONY_ASSIGN_OR_RETURN(
      admitted.output, InspectOutputDir(admitted.spec, admitted.result_keys, request.overwrite));
  if (admitted.output.finished) return admitted;
  if (admitted.output.same_run && admitted.spec.resume_from_checkpoint == "none") {
    admitted.output.must_move = true;
    admitted.output.extensions.clear();
    admitted.output.computed_on.clear();
    admitted.output.extended = false;
  }
  if (admitted.output.must_move) HARMONY_RETURN_IF_ERROR(CheckMayMove(admitted.spec));
  // A new run of `auto` or `none` begins with its init, wherever that began which was there.
  const bool anew = admitted.output.must_move || !admitted.output.same_run;
  if (anew && !NamesCheckpoint(admitted.spec)) {
    admitted.spec.begun_from.clear();
    admitted.result_keys = job::ResultKeysText(admitted.spec);
  }
  HARMONY_RETURN_IF_ERROR(CheckData(source.data_appended, &admitted));
  if (admitted.output.extended) {
    const io::RunExtension& extension = admitted.output.extensions.back();
    admitted.notes.push_back(absl::StrCat("goes on after step ", extension.after_step, " with ",
                                          absl::StrJoin(extension.changes, ", ")));
  }
  HARMONY_ASSIGN_OR_RETURN(admitted.weights,
                           CheckWeights(admitted.spec, source.model, admitted.model));
  HARMONY_RETURN_IF_ERROR(MakePlanOf(request, source.model, machine, limits, &admitted));
  std::vector<int64_t> there;
  if (!admitted.output.must_move) there = io::ListCheckpoints(admitted.spec.output_dir);
  HARMONY_RETURN_IF_ERROR(
      CheckDiskSpace(admitted.spec.output_dir,
                     DiskNeedOf(admitted.spec, admitted.model, admitted.weights, there)));
  return admitted;
}

}  // namespace harmony::service
