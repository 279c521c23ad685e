#pragma once

// Figures of steps and runs as JSON, as users find them in output_dir.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/service/job_run.h"

namespace harmony {

// A line of metrics.jsonl; numbers round-trip.
std::string StepLine(const StepMetrics& metrics, const std::vector<int64_t>& peak_bytes,
                     uint32_t generation);

// What a run did, at its end.
struct RunSummary {
  std::string text;  // for people
  std::string json;  // output_dir/summary.json
};
// `seconds`: from the first command to the end; `steps`: run in that time.
RunSummary SummarizeRun(const JobRun& run, int64_t steps, double seconds);

}  // namespace harmony
