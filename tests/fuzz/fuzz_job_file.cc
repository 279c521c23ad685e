// Job files: text up to a zero byte, `--set` arguments after it (one a line). What is accepted
// survives the way through JSON.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/job/job_file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace harmony;
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> parts = absl::StrSplit(input, absl::MaxSplits('\0', 1));
  job::JobOverrides overrides;
  if (parts.size() == 2) overrides.settings = absl::StrSplit(parts[1], '\n', absl::SkipEmpty());
  (void)job::JobSpecFromJson(parts[0], "database");
  const auto file = job::ReadJobFile(parts[0], "/jobs/job.yaml", overrides);
  if (!file.ok()) {
    FUZZ_CHECK(!file.status().message().empty());
    return 0;
  }
  const job::JobSpec* const job = &file->job;
  FUZZ_CHECK(job->global_batch_size > 0 && job->sequence_length > 0);
  FUZZ_CHECK(job->micro_batch_size == 0 || job->global_batch_size % job->micro_batch_size == 0);
  FUZZ_CHECK(job->virtual_replicas == 0 || job->global_batch_size % job->virtual_replicas == 0);
  FUZZ_CHECK(job::LearningRateAt(*job, 0) >= 0);
  const std::string json = job::JobSpecToJson(*job);
  const auto again = job::JobSpecFromJson(json, "database");
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(job::JobSpecToJson(*again) == json);
  FUZZ_CHECK(job::DifferingKeys(job::ResultKeysText(*job), job::ResultKeysText(*job)).empty());
  return 0;
}
