#pragma once

// The job file (YAML) and the other texts of a JobSpec. No file is read here.

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/job_spec.h"

namespace harmony::job {

// `--set` arguments: "key=value" each, nested keys as "data.path=FILE"; they replace what the file
// says. Relative paths in them are resolved against `folder` (the user's working directory), or
// against the job file's folder when it is empty.
struct JobOverrides {
  std::vector<std::string> settings;
  std::string folder;
  // Of a job that comes from another machine: relative paths, in the file too, are refused.
  bool absolute_paths_only = false;
};

// A job file, and what it says that is no part of the job.
struct JobFile {
  JobSpec job;
  // The passes over the data that it gives as `epochs` in the place of max_steps, which only who
  // has the data can fix by it; 0: it gives none.
  double epochs = 0;
  // Its file of tokens may have grown since the run began (`data.appended`).
  bool appended = false;
  // The keys that it or an override gives: for those whose default is not what every model has.
  std::set<std::string> given;
};

// Parses and checks a job file. `path` is the file's: it is put into messages, and relative paths
// in the file are resolved against its folder. InvalidArgument names key and line: unknown key
// (with the nearest known one), key given twice, wrong type, value out of range, missing key.
// Unimplemented names what is known but not built.
absl::StatusOr<JobFile> ReadJobFile(absl::string_view text, const std::string& path,
                                    const JobOverrides& overrides = {});
// The steps that so many passes over the data are: whole ones, the last of them filled from the
// pass after, as the data go on at their beginning. InvalidArgument: more than a job may have.
absl::StatusOr<int64_t> StepsOfEpochs(double epochs, int64_t samples, int64_t batch_size);

// ---- Canonical texts ----

// The keys that determine a run's result, one "key: value" a line. A checkpoint and
// output_dir/run.json keep this text. Taken of the job as parsed: `micro_batch_size: auto` and
// `virtual_replicas: auto` stay `auto`, whatever they were resolved to.
// A run that began from a checkpoint has its JobSpec::begun_from as `resume_from_checkpoint`; what
// its model computes (JobSpec::model_content) is `model`, and differs only where both texts have
// it.
std::string ResultKeysText(const JobSpec& job);
// JobSpec::begun_from of the run that such a text is of.
std::string BegunFrom(absl::string_view result_keys_text);
// 32 hexadecimal digits (XXH3, 128 bits) of such a text.
std::string ResultDigest(absl::string_view result_keys_text);
// Keys whose lines differ, sorted; "key (a -> b)" each.
std::vector<std::string> DifferingKeys(absl::string_view before, absl::string_view after);

// All keys as one JSON object, for the database and checkpoints; FromJson gives the same JobSpec
// back. Paths are taken as they are.
std::string JobSpecToJson(const JobSpec& job);
absl::StatusOr<JobSpec> JobSpecFromJson(absl::string_view json, absl::string_view where);

}  // namespace harmony::job
