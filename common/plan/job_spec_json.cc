#include "common/plan/job_spec_json.h"

#include <cmath>
#include <type_traits>
#include <utility>

#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace harmony {
namespace {

using Json = nlohmann::json;

// The last enumerator, for range checks.
template <typename Enum>
constexpr Enum kLast{};
template <>
constexpr InitMode kLast<InitMode> = InitMode::kPretrained;
template <>
constexpr DataFormat kLast<DataFormat> = DataFormat::kTokensU32;
template <>
constexpr OptimizerKind kLast<OptimizerKind> = OptimizerKind::kSgd;
template <>
constexpr ScheduleKind kLast<ScheduleKind> = ScheduleKind::kCosineWithMinLr;
template <>
constexpr UpdateMode kLast<UpdateMode> = UpdateMode::kDeferred;
template <>
constexpr StashPlacement kLast<StashPlacement> = StashPlacement::kHost;

class Writer {
 public:
  template <typename T>
  void operator()(const char* name, const T& value) {
    if constexpr (std::is_enum_v<T>) {
      json_[name] = static_cast<int>(value);
    } else {
      json_[name] = value;
    }
  }
  std::string Text() const { return json_.dump(); }

 private:
  Json json_ = Json::object();
};

class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  template <typename T>
  void operator()(const char* name, T& value) {
    if (!status_.ok()) return;
    const auto found = json_.find(name);
    if (found == json_.end()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("job: '", name, "' is missing"));
    } else if (!Take(*found, value)) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("job: '", name, "' is ", found->dump(), ", of another type or range"));
    }
  }
  absl::Status status() const { return status_; }

 private:
  template <typename T>
  static bool Take(const Json& json, T& value) {
    if constexpr (std::is_enum_v<T>) {
      if (!json.is_number_integer()) return false;
      const int64_t raw = json.get<int64_t>();
      if (raw < 0 || raw > static_cast<int64_t>(kLast<T>)) return false;
      value = static_cast<T>(raw);
      return true;
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return false;
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      if (!json.is_number_unsigned()) return false;
    } else if constexpr (std::is_integral_v<T>) {
      if (!json.is_number_integer()) return false;
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!json.is_number()) return false;
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) return false;
    } else {
      if (!json.is_array()) return false;
      for (const Json& element : json) {
        if (!element.is_number_integer()) return false;
      }
    }
    value = json.get<T>();
    return true;
  }

  const Json& json_;
  absl::Status status_;
};

// Every member, once, for both directions.
template <typename Visitor, typename Job>
void VisitMembers(Visitor& visit, Job& job) {
  visit("model_name_or_path", job.model_name_or_path);
  visit("init", job.init);
  visit("data_path", job.data_path);
  visit("data_format", job.data_format);
  visit("sequence_length", job.sequence_length);
  visit("global_batch_size", job.global_batch_size);
  visit("micro_batch_size", job.micro_batch_size);
  visit("max_steps", job.max_steps);
  visit("shuffle", job.shuffle);
  visit("optim", job.optim);
  visit("learning_rate", job.learning_rate);
  visit("lr_scheduler_type", job.lr_scheduler_type);
  visit("warmup_steps", job.warmup_steps);
  visit("min_lr_rate", job.min_lr_rate);
  visit("weight_decay", job.weight_decay);
  visit("adam_beta1", job.adam_beta1);
  visit("adam_beta2", job.adam_beta2);
  visit("adam_epsilon", job.adam_epsilon);
  visit("layer_groups", job.layer_groups);
  visit("update", job.update);
  visit("stash", job.stash);
  visit("compute_threads", job.compute_threads);
  visit("max_grad_norm", job.max_grad_norm);
  visit("seed", job.seed);
  visit("mode", job.mode);
  visit("output_dir", job.output_dir);
  visit("save_steps", job.save_steps);
  visit("save_total_limit", job.save_total_limit);
  visit("resume_from_checkpoint", job.resume_from_checkpoint);
  visit("logging_steps", job.logging_steps);
}

}  // namespace

std::string JobSpecToJson(const JobSpec& job) {
  Writer writer;
  VisitMembers(writer, job);
  return writer.Text();
}

absl::StatusOr<JobSpec> JobSpecFromJson(absl::string_view json) {
  const Json parsed = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::InvalidArgumentError("job: not a JSON object");
  JobSpec job;
  Reader reader(parsed);
  VisitMembers(reader, job);
  HARMONY_RETURN_IF_ERROR(reader.status());
  return job;
}

}  // namespace harmony
