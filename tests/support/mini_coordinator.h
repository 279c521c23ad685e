#pragma once

// The smallest coordinator: a JobRunner over real processes, without store, queue or metrics. It
// spawns swapper, host worker and workers itself, brings back what dies, and shows what came out.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/job/job_spec.h"
#include "common/plan/plan.h"
#include "coordinator/runner/job_runner.h"

namespace harmony::testing_support {

struct MiniJob {
  std::string devices;  // "sim*2:mem=4MiB"
  job::JobSpec spec;    // output_dir and data_path as they are used
  std::string config_json;
  plan::Plan plan;
  int64_t steps = 0;
};

class MiniCoordinator {
 public:
  explicit MiniCoordinator(MiniJob job);
  ~MiniCoordinator();

  // Called before each event that the job's runner gets, with its number from 1.
  void OnEventNumber(std::function<void(int64_t)> observer);
  // kill -9, if it runs.
  void Kill(const runner::ProcessId& process);

  // Runs the job to its end.
  absl::Status Run();

  // Of steps that completed, by index; of a step completed twice, the last.
  const std::vector<double>& losses() const;
  // A block's parameters as they stand in the arena.
  std::vector<float> Weights(int block) const;
  int64_t events() const;
  uint32_t generation() const;
  // Bytes of a traffic class, as the swapper counted them.
  int64_t MovedBytes(command::TrafficClass traffic) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace harmony::testing_support
