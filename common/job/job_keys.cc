#include "common/job/job_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/nearest_name.h"
#include "common/job/key_aliases.h"
#include "common/job/rates_key.h"
#include "common/job/read_values.h"
#include "common/job/rules_key.h"

namespace harmony::job {
namespace {

absl::Status NotBuilt(const JobKey& key, const JobValue& value, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(value.origin, ": ", key.name, ": ", value.text, ": ",
                                               "not there yet; use ", what));
}

// Quoted or not: a word is a word (job files written as JSON quote it).
bool IsAuto(const JobValue& value) {
  return value.kind == JobValue::Kind::kScalar && value.text == "auto";
}

template <typename Enum>
using Choices = absl::Span<const std::pair<absl::string_view, Enum>>;

template <typename Enum>
absl::Status ReadEnum(const JobKey& key, const JobValue& value, Choices<Enum> choices, Enum* out) {
  std::vector<absl::string_view> names;
  for (const auto& [name, choice] : choices) {
    names.push_back(name);
    if (value.kind != JobValue::Kind::kScalar || value.text != name) continue;
    *out = choice;
    return absl::OkStatus();
  }
  return Wrong(key, value, absl::StrCat("one of: ", absl::StrJoin(names, ", ")));
}

template <typename Enum>
std::string PrintEnum(Choices<Enum> choices, Enum value) {
  for (const auto& [name, choice] : choices) {
    if (choice == value) return std::string(name);
  }
  return "?";
}

std::string PrintDouble(double value) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return std::string(buffer.data(), end);
}

using absl::string_view;
using std::pair;
constexpr std::array<pair<string_view, InitMode>, 2> kInits = {
    {{"random", InitMode::kRandom}, {"pretrained", InitMode::kPretrained}}};
constexpr std::array<pair<string_view, ExportType>, 3> kExportTypes = {
    {{"source", ExportType::kAsSource}, {"fp32", ExportType::kFp32}, {"bf16", ExportType::kBf16}}};
constexpr std::array<pair<string_view, std::optional<DType>>, 3> kGradientTypes = {
    {{"auto", std::nullopt}, {"fp32", DType::kF32}, {"bf16", DType::kBF16}}};
constexpr std::array<pair<string_view, DataFormat>, 3> kFormats = {
    {{"text-bytes", DataFormat::kTextBytes},
     {"tokens-u16", DataFormat::kTokensU16},
     {"tokens-u32", DataFormat::kTokensU32}}};
constexpr std::array<pair<string_view, OptimizerKind>, 2> kOptimizers = {
    {{"adamw", OptimizerKind::kAdamW}, {"sgd", OptimizerKind::kSgd}}};
constexpr std::array<pair<string_view, ScheduleKind>, 5> kSchedules = {
    {{"constant", ScheduleKind::kConstant},
     {"constant_with_warmup", ScheduleKind::kConstantWithWarmup},
     {"linear", ScheduleKind::kLinear},
     {"cosine", ScheduleKind::kCosine},
     {"cosine_with_min_lr", ScheduleKind::kCosineWithMinLr}}};
constexpr std::array<pair<string_view, UpdateMode>, 3> kUpdates = {
    {{"auto", UpdateMode::kAuto},
     {"eager", UpdateMode::kEager},
     {"deferred", UpdateMode::kDeferred}}};
constexpr std::array<pair<string_view, StashPlacement>, 3> kStashes = {
    {{"auto", StashPlacement::kAuto},
     {"device", StashPlacement::kDevice},
     {"host", StashPlacement::kHost}}};
constexpr std::array<pair<string_view, ReplanMode>, 3> kReplans = {
    {{"off", ReplanMode::kOff}, {"suggest", ReplanMode::kSuggest}, {"auto", ReplanMode::kAuto}}};
constexpr std::array<string_view, 3> kModes = {"auto", "harmony-pp", "harmony-dp"};
constexpr std::array<string_view, 2> kFlags = {"false", "true"};
constexpr std::array<string_view, 3> kLaterModes = {"dp-swap", "pp-swap", "zero-offload"};

absl::Status ReadMicroBatch(const JobKey& key, const JobValue& value, JobSpec& job) {
  if (IsAuto(value)) {
    job.micro_batch_size = 0;
    return absl::OkStatus();
  }
  absl::Status status = ReadInt(key, value, 1, 1 << 20, &job.micro_batch_size);
  return status.ok() ? status : Wrong(key, value, "auto or a whole number of sequences from 1");
}

absl::Status ReadReplicas(const JobKey& key, const JobValue& value, JobSpec& job) {
  job.virtual_replicas = 0;
  if (IsAuto(value)) return absl::OkStatus();
  int64_t replicas = 0;
  if (!ReadInt(key, value, 1, 1 << 20, &replicas).ok() || (replicas & (replicas - 1)) != 0) {
    return Wrong(key, value,
                 "auto or a power of two (1, 2, 4, ...) that divides the microbatches of a step");
  }
  job.virtual_replicas = static_cast<int>(replicas);
  return absl::OkStatus();
}

absl::Status ReadWarmup(const JobKey& key, const JobValue& value, JobSpec& job) {
  constexpr absl::string_view kMust = "a whole number of steps, or below 1 a share of max_steps";
  HARMONY_RETURN_IF_ERROR(ReadDouble(key, value, 0, 1e12, kMust, &job.warmup_steps));
  if (job.warmup_steps >= 1 && job.warmup_steps != std::floor(job.warmup_steps)) {
    return Wrong(key, value, kMust);
  }
  return absl::OkStatus();
}

absl::Status ReadLayerGroups(const JobKey& key, const JobValue& value, JobSpec& job) {
  constexpr absl::string_view kMust = "auto or a list of numbers of layers like [4, 4, 6]";
  job.layer_groups.clear();
  if (IsAuto(value)) return absl::OkStatus();
  if (value.kind != JobValue::Kind::kList || value.items.empty()) return Wrong(key, value, kMust);
  for (const std::string& item : value.items) {
    int layers = 0;
    if (!absl::SimpleAtoi(item, &layers) || layers < 1 || layers > 100'000) {
      return Wrong(key, value, kMust);
    }
    job.layer_groups.push_back(layers);
  }
  return absl::OkStatus();
}

absl::Status ReadStash(const JobKey& key, const JobValue& value, JobSpec& job) {
  return ReadEnum<StashPlacement>(key, value, kStashes, &job.stash);
}

absl::Status ReadMode(const JobKey& key, const JobValue& value, JobSpec& job) {
  if (value.kind == JobValue::Kind::kScalar && absl::c_linear_search(kLaterModes, value.text)) {
    return NotBuilt(key, value, "auto, harmony-pp or harmony-dp");
  }
  if (value.kind != JobValue::Kind::kScalar || !absl::c_linear_search(kModes, value.text)) {
    return Wrong(key, value, absl::StrCat("one of: ", absl::StrJoin(kModes, ", ")));
  }
  job.mode = value.text;
  return absl::OkStatus();
}

absl::Status ReadResume(const JobKey& key, const JobValue& value, JobSpec& job) {
  // transformers' true: the newest checkpoint, if there is one.
  bool newest = false;
  if (ReadBool(key, value, &newest).ok()) {
    job.resume_from_checkpoint = newest ? "auto" : "none";
    return absl::OkStatus();
  }
  return ReadText(key, value, &job.resume_from_checkpoint);
}

// Stored texts of jobs have every key; a job with arrays has no path.
absl::Status ReadDataPath(const JobKey& key, const JobValue& value, JobSpec& job) {
  job.data_path.clear();
  if (value.kind == JobValue::Kind::kScalar && value.text.empty()) return absl::OkStatus();
  return ReadText(key, value, &job.data_path);
}

absl::Status ReadInputs(const JobKey& key, const JobValue& value, JobSpec& job) {
  constexpr absl::string_view kMust =
      "a map of the model's inputs to files, like {pixel_values: images.npy, labels: labels.npy}";
  job.data_inputs.clear();
  if (value.kind != JobValue::Kind::kMap) return Wrong(key, value, kMust);
  for (const std::string& item : value.items) {
    const size_t sign = item.find('=');
    if (sign == 0 || sign == std::string::npos || sign + 1 == item.size() ||
        item.find('\0') != std::string::npos) {
      return Wrong(key, value, kMust);
    }
    if (!job.data_inputs.emplace(item.substr(0, sign), item.substr(sign + 1)).second) {
      return Wrong(key, value, "a map with each input once");
    }
  }
  return absl::OkStatus();
}

std::string PrintInputs(const JobSpec& job) {
  return absl::StrJoin(job.data_inputs, "\n", absl::PairFormatter("="));
}

absl::Status ReadDropout(const JobKey& key, const JobValue& value, JobSpec&) {
  if (IsPlain(value) && value.text == "config") return NotBuilt(key, value, "0");
  double dropout = 0;
  return ReadDouble(key, value, 0, 0, "0", &dropout);
}

absl::Status ReadSeed(const JobKey& key, const JobValue& value, JobSpec& job) {
  if (!IsPlain(value) || !absl::SimpleAtoi(value.text, &job.seed)) {
    return Wrong(key, value, "a whole number from 0 to 2^64 - 1");
  }
  return absl::OkStatus();
}

absl::Status ReadThreads(const JobKey& key, const JobValue& value, JobSpec& job) {
  int64_t threads = 1;
  HARMONY_RETURN_IF_ERROR(ReadInt(key, value, 1, 1024, &threads));
  job.compute_threads = static_cast<int>(threads);
  return absl::OkStatus();
}

// Readers and printers of plain members.
template <auto Member, int64_t kMin, int64_t kMax>
absl::Status Int(const JobKey& key, const JobValue& value, JobSpec& job) {
  return ReadInt(key, value, kMin, kMax, &(job.*Member));
}
template <auto Member>
std::string PrintNumber(const JobSpec& job) {
  return absl::StrCat(job.*Member);
}
template <auto Member>
absl::Status Flag(const JobKey& key, const JobValue& value, JobSpec& job) {
  return ReadBool(key, value, &(job.*Member));
}
template <auto Member>
std::string PrintFlag(const JobSpec& job) {
  return job.*Member ? "true" : "false";
}
template <auto Member>
absl::Status NotNegative(const JobKey& key, const JobValue& value, JobSpec& job) {
  return ReadDouble(key, value, 0, kHuge, "a number of at least 0", &(job.*Member));
}
template <auto Member>
absl::Status Positive(const JobKey& key, const JobValue& value, JobSpec& job) {
  return ReadDouble(key, value, std::numeric_limits<double>::min(), kHuge, "a number above 0",
                    &(job.*Member));
}
template <auto Member>
absl::Status Share(const JobKey& key, const JobValue& value, JobSpec& job) {
  return ReadDouble(key, value, 0, 1, "a number from 0 to 1", &(job.*Member));
}
template <auto Member>
absl::Status Decay(const JobKey& key, const JobValue& value, JobSpec& job) {
  return ReadDouble(key, value, 0, std::nextafter(1.0, 0.0), "a number from 0 to below 1",
                    &(job.*Member));
}
template <auto Member>
std::string PrintReal(const JobSpec& job) {
  return PrintDouble(job.*Member);
}
template <auto Member>
absl::Status Text(const JobKey& key, const JobValue& value, JobSpec& job) {
  return ReadText(key, value, &(job.*Member));
}
template <auto Member>
std::string PrintText(const JobSpec& job) {
  return job.*Member;
}
template <auto Member, const auto& kChoices>
absl::Status OneOf(const JobKey& key, const JobValue& value, JobSpec& job) {
  using Enum = std::remove_reference_t<decltype(job.*Member)>;
  return ReadEnum<Enum>(key, value, kChoices, &(job.*Member));
}
template <auto Member, const auto& kChoices>
std::string PrintOneOf(const JobSpec& job) {
  using Enum = std::remove_cvref_t<decltype(job.*Member)>;
  return PrintEnum<Enum>(kChoices, job.*Member);
}

absl::Status ReadOptimizer(const JobKey& key, const JobValue& value, JobSpec& job) {
  // PyTorch's own, as transformers calls it; the same numbers but for the last bits.
  static constexpr string_view kOfTransformers[] = {"adamw_torch", "adamw_torch_fused", "AdamW"};
  if (value.kind == JobValue::Kind::kScalar && absl::c_linear_search(kOfTransformers, value.text)) {
    job.optim = OptimizerKind::kAdamW;
    return absl::OkStatus();
  }
  return OneOf<&JobSpec::optim, kOptimizers>(key, value, job);
}

// All values of a key, by name.
string_view NameOf(string_view name) { return name; }
template <typename Enum>
string_view NameOf(const pair<string_view, Enum>& choice) {
  return choice.first;
}
template <const auto& kChoices>
std::vector<string_view> Names() {
  std::vector<string_view> names;
  for (const auto& choice : kChoices) names.push_back(NameOf(choice));
  return names;
}

constexpr auto kLiteral = JobKey::Type::kLiteral;
constexpr auto kText = JobKey::Type::kText;
constexpr auto kPath = JobKey::Type::kPath;
constexpr bool kRequired = true, kOptional = false;
// Does the key determine the result?
constexpr bool kResult = true, kNoResult = false;
using J = JobSpec;

const JobKey kKeys[] = {
    {"adam_beta1", kLiteral, kOptional, kResult, Decay<&J::adam_beta1>, PrintReal<&J::adam_beta1>},
    {"adam_beta2", kLiteral, kOptional, kResult, Decay<&J::adam_beta2>, PrintReal<&J::adam_beta2>},
    {"adam_epsilon", kLiteral, kOptional, kResult, Positive<&J::adam_epsilon>,
     PrintReal<&J::adam_epsilon>},
    {"bf16", kLiteral, kOptional, kResult, Flag<&J::bf16>, PrintFlag<&J::bf16>, Names<kFlags>},
    {"compute_threads", kLiteral, kOptional, kResult, ReadThreads,
     PrintNumber<&J::compute_threads>},
    {"data.format", kText, kOptional, kResult, OneOf<&J::data_format, kFormats>,
     PrintOneOf<&J::data_format, kFormats>, Names<kFormats>},
    {"data.inputs", JobKey::Type::kPaths, kOptional, kResult, ReadInputs, PrintInputs},
    {"data.mask_probability", kLiteral, kOptional, kResult, Decay<&J::mask_probability>,
     PrintReal<&J::mask_probability>},
    {"data.mask_token", kLiteral, kOptional, kResult,
     Int<&J::mask_token, 0, std::numeric_limits<int32_t>::max()>, PrintNumber<&J::mask_token>},
    {"data.path", kPath, kOptional, kResult, ReadDataPath, PrintText<&J::data_path>},
    {"dropout", kLiteral, kOptional, kResult, ReadDropout,
     [](const J&) -> std::string { return "0"; }},
    {"export_dtype", kText, kOptional, kNoResult, OneOf<&J::export_dtype, kExportTypes>,
     PrintOneOf<&J::export_dtype, kExportTypes>, Names<kExportTypes>},
    {"global_batch_size", kLiteral, kOptional, kResult,
     Int<&J::global_batch_size, 1, limits::kMostSequences>, PrintNumber<&J::global_batch_size>},
    // What `auto` was resolved to is kept with the run.
    {"gradient_dtype", kText, kOptional, kResult, OneOf<&J::gradient_dtype, kGradientTypes>,
     PrintOneOf<&J::gradient_dtype, kGradientTypes>, Names<kGradientTypes>},
    {"init", kText, kOptional, kResult, OneOf<&J::init, kInits>, PrintOneOf<&J::init, kInits>,
     Names<kInits>},
    {"layer_groups", kLiteral, kOptional, kNoResult, ReadLayerGroups,
     [](const J& job) -> std::string {
       return job.layer_groups.empty()
                  ? "auto"
                  : absl::StrCat("[", absl::StrJoin(job.layer_groups, ", "), "]");
     }},
    {"learning_rate", kLiteral, kOptional, kResult, NotNegative<&J::learning_rate>,
     PrintReal<&J::learning_rate>},
    {"learning_rate_after", kLiteral, kOptional, kResult, ReadRatesAfter, PrintRatesAfter},
    {"logging_steps", kLiteral, kOptional, kNoResult, Int<&J::logging_steps, 1, kMaxInt64>,
     PrintNumber<&J::logging_steps>},
    {"lr_scheduler_type", kText, kOptional, kResult, OneOf<&J::lr_scheduler_type, kSchedules>,
     PrintOneOf<&J::lr_scheduler_type, kSchedules>, Names<kSchedules>},
    {"max_grad_norm", kLiteral, kOptional, kResult, NotNegative<&J::max_grad_norm>,
     PrintReal<&J::max_grad_norm>},
    {"max_steps", kLiteral, kOptional, kResult, Int<&J::max_steps, 0, limits::kMostSteps>,
     PrintNumber<&J::max_steps>},
    {"micro_batch_size", kLiteral, kOptional, kResult, ReadMicroBatch,
     [](const J& job) -> std::string {
       return job.micro_batch_size == 0 ? "auto" : absl::StrCat(job.micro_batch_size);
     }},
    {"min_lr_rate", kLiteral, kOptional, kResult, Share<&J::min_lr_rate>,
     PrintReal<&J::min_lr_rate>},
    // The result is fixed by virtual_replicas, whatever the mode; what `auto` of them was resolved
    // to is kept with the run.
    {"mode", kText, kOptional, kNoResult, ReadMode, PrintText<&J::mode>, Names<kModes>},
    {"model_name_or_path", JobKey::Type::kModel, kRequired, kResult, Text<&J::model_name_or_path>,
     PrintText<&J::model_name_or_path>},
    {"momentum", kLiteral, kOptional, kResult, Decay<&J::momentum>, PrintReal<&J::momentum>},
    {"nesterov", kLiteral, kOptional, kResult, Flag<&J::nesterov>, PrintFlag<&J::nesterov>,
     Names<kFlags>},
    {"optim", kText, kOptional, kResult, ReadOptimizer, PrintOneOf<&J::optim, kOptimizers>,
     Names<kOptimizers>},
    {"output_dir", kPath, kRequired, kNoResult, Text<&J::output_dir>, PrintText<&J::output_dir>},
    {"parameter_rules", kLiteral, kOptional, kResult, ReadParameterRules, PrintParameterRules},
    {"replan", kText, kOptional, kNoResult, OneOf<&J::replan, kReplans>,
     PrintOneOf<&J::replan, kReplans>, Names<kReplans>},
    {"resume_from_checkpoint", kPath, kOptional, kNoResult, ReadResume,
     PrintText<&J::resume_from_checkpoint>},
    {"save_steps", kLiteral, kOptional, kNoResult, Int<&J::save_steps, 0, kMaxInt64>,
     PrintNumber<&J::save_steps>},
    {"save_total_limit", kLiteral, kOptional, kNoResult, Int<&J::save_total_limit, 1, kMaxInt64>,
     PrintNumber<&J::save_total_limit>},
    {"seed", kLiteral, kOptional, kResult, ReadSeed, PrintNumber<&J::seed>},
    {"sequence_length", kLiteral, kOptional, kResult,
     Int<&J::sequence_length, 1, limits::kMostTokens>, PrintNumber<&J::sequence_length>},
    {"shuffle", kLiteral, kOptional, kResult, Flag<&J::shuffle>, PrintFlag<&J::shuffle>,
     Names<kFlags>},
    {"stash", kText, kOptional, kNoResult, ReadStash, PrintOneOf<&J::stash, kStashes>,
     Names<kStashes>},
    {"update", kText, kOptional, kNoResult, OneOf<&J::update, kUpdates>,
     PrintOneOf<&J::update, kUpdates>, Names<kUpdates>},
    {"virtual_replicas", kLiteral, kOptional, kResult, ReadReplicas,
     [](const J& job) -> std::string {
       return job.virtual_replicas == 0 ? "auto" : absl::StrCat(job.virtual_replicas);
     }},
    {"warmup_steps", kLiteral, kOptional, kResult, ReadWarmup, PrintReal<&J::warmup_steps>},
    {"weight_decay", kLiteral, kOptional, kResult, NotNegative<&J::weight_decay>,
     PrintReal<&J::weight_decay>},
};

constexpr std::array<string_view, 7> kLaterKeys = {
    "plan", "pipeline", "eval_data", "eval_steps", "eval_strategy", "profile", "activations"};

}  // namespace

bool IsWord(const JobKey& key, const JobValue& value) {
  bool newest = false;
  return key.name == "resume_from_checkpoint" &&
         (value.text == "auto" || value.text == "none" || ReadBool(key, value, &newest).ok());
}

absl::Span<const JobKey> JobKeys() { return kKeys; }

const JobKey* FindJobKey(absl::string_view name) {
  for (const JobKey& key : kKeys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

absl::Status UnknownJobKey(absl::string_view name, absl::string_view origin) {
  name = name.substr(0, 100);
  if (std::find(kLaterKeys.begin(), kLaterKeys.end(), name) != kLaterKeys.end()) {
    return absl::UnimplementedError(
        absl::StrCat(origin, ": the key '", name, "' is not there yet; remove it"));
  }
  if (const string_view advice = AdviceFor(name); !advice.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": there is no key '", name, "'; ", advice));
  }
  std::vector<string_view> names;
  for (const JobKey& key : kKeys) names.push_back(key.name);
  names.push_back("epochs");  // read before it is max_steps
  return absl::InvalidArgumentError(
      absl::StrCat(origin, ": ", document::UnknownName("key", name, names)));
}

}  // namespace harmony::job
