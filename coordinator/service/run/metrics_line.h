#pragma once

// Figures of steps and runs as JSON, as users find them in output_dir.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/service/run/step_log.h"

namespace harmony::service {

class JobRun;

// A line of metrics.jsonl; numbers round-trip.
std::string MetricsLine(const StepMetrics& metrics, const std::vector<int64_t>& peak_bytes,
                        uint32_t generation);

// What a run did, at its end.
struct RunSummary {
  std::string text;  // for people
  std::string json;  // output_dir/summary.json
};
// `seconds`: from this run's first command to its end. Rates and traffic are of the steps that it
// saw; of those before a restart of the coordinator or a change of plan, metrics.jsonl tells.
RunSummary SummarizeRun(const JobRun& run, double seconds);

}  // namespace harmony::service
