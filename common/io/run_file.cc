#include "common/io/run_file.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/io/fingerprint_json.h"
#include "common/io/resolved_keys_json.h"
#include "common/io/token_file.h"
#include "common/job/job_file.h"

namespace harmony::io {
namespace {

constexpr char kRunFile[] = "run.json";
constexpr int64_t kMaxRunFileBytes = 1 << 20;
constexpr int64_t kMostSteps = std::numeric_limits<int64_t>::max();

// What holds from some step on, in order: an array of objects with after_step and, under `key`,
// texts.
template <typename Entry>
std::vector<Entry> ReadEntries(const document::JsonField& field, const char* key,
                               std::vector<std::string> Entry::*texts) {
  std::vector<Entry> entries;
  for (const document::JsonField& item : field.Items()) {
    item.Only({"after_step", key});
    Entry& entry = entries.emplace_back();
    entry.after_step = item.Get("after_step").Integer(0);
    for (const document::JsonField& text : item.Get(key).Items()) {
      (entry.*texts).push_back(text.Text());
    }
  }
  return entries;
}

}  // namespace

std::vector<std::string> SetHardware(int64_t after_step, const std::vector<std::string>& devices,
                                     std::vector<RunHardware>& computed_on) {
  while (!computed_on.empty() && computed_on.back().after_step >= after_step) {
    computed_on.pop_back();
  }
  if (!computed_on.empty() && computed_on.back().devices == devices) return {};
  const std::vector<std::string> before =
      computed_on.empty() ? std::vector<std::string>() : computed_on.back().devices;
  computed_on.push_back({after_step, devices});
  return before;
}

absl::StatusOr<RunFile> ReadRunFile(const std::string& output_dir) {
  const std::string path = JoinPath(output_dir, kRunFile);
  HARMONY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxRunFileBytes));
  RunFile run;
  const absl::Status read = document::ReadJson(text, path, [&](const document::JsonField& root) {
    root.Only({"digest", "micro_batch_size", "virtual_replicas", "sum_order", "gradient_dtype",
               "data", "finished", "result_keys", "extensions", "save_steps", "logging_steps",
               "computed_on"});
    run.result_keys = root.Get("result_keys").Text();
    run.resolved = ReadResolvedKeys(root);
    run.finished = root.Get("finished").Flag();
    if (root.Has("save_steps")) run.save_steps = root.Get("save_steps").Integer(0, kMostSteps);
    if (root.Has("logging_steps"))
      run.logging_steps = root.Get("logging_steps").Integer(0, kMostSteps);
    if (root.Has("extensions")) {
      run.extensions = ReadEntries(root.Get("extensions"), "changed", &RunExtension::changes);
    }
    if (root.Has("computed_on")) {
      run.computed_on = ReadEntries(root.Get("computed_on"), "devices", &RunHardware::devices);
    }
    if (root.Has("data")) run.data = ReadFingerprint(root.Get("data"));
  });
  if (!read.ok()) return absl::DataLossError(read.message());
  return run;
}

absl::Status WriteRunFile(const std::string& output_dir, const RunFile& run) {
  nlohmann::ordered_json json;
  json["digest"] = job::ResultDigest(run.result_keys);
  WriteResolvedKeys(run.resolved, json);
  if (run.data) json["data"] = ToJson(*run.data);
  json["finished"] = run.finished;
  if (run.save_steps) json["save_steps"] = *run.save_steps;
  if (run.logging_steps) json["logging_steps"] = *run.logging_steps;
  for (const RunExtension& extension : run.extensions) {
    json["extensions"].push_back(
        {{"after_step", extension.after_step}, {"changed", extension.changes}});
  }
  for (const RunHardware& hardware : run.computed_on) {
    json["computed_on"].push_back(
        {{"after_step", hardware.after_step}, {"devices", hardware.devices}});
  }
  json["result_keys"] = run.result_keys;
  return WriteFileAtomically(JoinPath(output_dir, kRunFile), json.dump(1) + "\n");
}

absl::Status CheckDataUnchanged(const std::optional<DataFingerprint>& begun_with,
                                const std::string& where, const DataFingerprint& now) {
  if (!begun_with || *begun_with == now) return absl::OkStatus();
  const std::string how =
      begun_with->bytes != now.bytes
          ? absl::StrCat("it had ", begun_with->bytes, " bytes and has ", now.bytes)
          : "it is as long as it was, but its content is another";
  return absl::FailedPreconditionError(absl::StrCat(
      where, ": has changed since the run began: ", how,
      ". Going on would give the result of neither file: restore the file, begin a new run ",
      "(another output_dir, or --overwrite), or, where tokens were appended to it, give ",
      "data.appended: true"));
}

absl::Status CheckDataAppended(const job::JobSpec& job, const DataFingerprint& begun_with,
                               int64_t steps) {
  const auto refuse = [&job](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("data.appended: ", job.data_path, ": ", why));
  };
  HARMONY_ASSIGN_OR_RETURN(const File file, File::OpenForReading(job.data_path));
  HARMONY_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (size < begun_with.bytes) {
    return refuse(
        absl::StrCat("it had ", begun_with.bytes, " bytes when the run began, and has ", size));
  }
  HARMONY_ASSIGN_OR_RETURN(const DataFingerprint now, FingerprintOf(file, begun_with.bytes));
  if (now != begun_with) {
    return refuse(absl::StrCat("the first ", begun_with.bytes,
                               " bytes are not those that the run began with"));
  }
  if (steps == 0) return absl::OkStatus();
  if (job.shuffle) return refuse("with shuffle, the steps done would have had other sequences");
  const int64_t tokens = begun_with.bytes / TokenBytes(job.data_format);
  if (steps * job.global_batch_size <= TokenFile::Sequences(tokens, job.sequence_length)) {
    return absl::OkStatus();
  }
  return refuse(absl::StrCat("the ", steps,
                             " steps done have gone on at its beginning, where they "
                             "would have read what was appended"));
}

absl::StatusOr<std::unique_ptr<TrainingData>> OpenDataOfRun(const job::JobSpec& job,
                                                            const model::ModelSpec& model) {
  const absl::StatusOr<RunFile> run = ReadRunFile(job.output_dir);
  // What cannot be read now says nothing of the run: only a folder without it does.
  if (!run.ok() && !absl::IsNotFound(run.status())) return run.status();
  if (!run.ok() || !run->data.has_value()) return OpenTrainingData(job, model);
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<TrainingData> data,
                           OpenTrainingData(job, model, run->data->bytes));
  HARMONY_ASSIGN_OR_RETURN(const DataFingerprint now, data->Fingerprint());
  HARMONY_RETURN_IF_ERROR(CheckDataUnchanged(run->data, data->where(), now));
  return data;
}

}  // namespace harmony::io
