#pragma once

// Job files for tests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/job_file.h"

namespace harmony::job {

inline constexpr absl::string_view kMinimal = R"(model_name_or_path: gpt2-mini
data: {path: text.txt, format: text-bytes}
output_dir: out
)";

// The job alone.
inline absl::StatusOr<JobSpec> ParseJobFile(absl::string_view text, const std::string& path,
                                            const JobOverrides& overrides = {}) {
  HARMONY_ASSIGN_OR_RETURN(JobFile file, ReadJobFile(text, path, overrides));
  return std::move(file.job);
}

// The least that a job file has, and more lines.
inline absl::StatusOr<JobSpec> Parse(absl::string_view more, const JobOverrides& overrides = {}) {
  return ParseJobFile(absl::StrCat(kMinimal, more), "/jobs/job.yaml", overrides);
}

inline void ExpectError(const absl::Status& status, absl::StatusCode code,
                        std::initializer_list<absl::string_view> parts) {
  EXPECT_EQ(status.code(), code) << status;
  for (absl::string_view part : parts) {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::string(part)));
  }
}

}  // namespace harmony::job
