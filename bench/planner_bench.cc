// How long the planner searches, how far its plans are from the lower bound, and how fast the
// simulator is.
//
//   build/bin/planner_bench            all cases
//   build/bin/planner_bench deep 1t    only those whose names contain one of these
//   build/bin/planner_bench speed      only the simulator

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/model/families/causal_lm.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/planner/planner.h"
#include "tests/sim/simulator/simulation.h"

namespace harmony::bench {
namespace {

struct Case {
  const char* name;
  const char* preset;  // empty: as wide as `hidden` says
  int64_t layers, hidden;
  int64_t tokens, batch, microbatch;
  const char* devices;
  const char* host_memory;
  int replicas = 0;  // 0: a pipeline with one; else data parallel
};

constexpr char kServer[] = ",flops=10T,h2d=12GB/s,d2h=12GB/s,p2p=10GB/s,host=30GB/s";
constexpr char kLargeServer[] =
    "sim*8:mem=80GB,context=500MB,flops=300T,h2d=25GB/s,d2h=25GB/s,p2p=25GB/s,host=100GB/s";

const Case kCases[] = {
    {"gpt2-124m 1 device", "gpt2-124m", 0, 0, 256, 32, 2, "sim:mem=512MiB", ""},
    {"gpt2-124m 4 devices", "gpt2-124m", 0, 0, 256, 32, 2, "sim*4:mem=512MiB", ""},
    {"gpt2-124m 4 devices, microbatch auto", "gpt2-124m", 0, 0, 256, 32, 0, "sim*4:mem=512MiB", ""},
    {"gpt2-124m 4 devices, data parallel", "gpt2-124m", 0, 0, 256, 32, 2, "sim*4:mem=512MiB", "",
     4},
    {"gpt2-1.5b 4 devices of 11 GB", "gpt2-1.5b", 0, 0, 1024, 64, 1, "sim*4:mem=11GB", ""},
    {"gpt2-1.5b 3 unequal devices", "gpt2-1.5b", 0, 0, 1024, 32, 1,
     "sim:mem=11GB,flops=20T,h2d=12GB/s,d2h=12GB/s,p2p=10GB/s "
     "sim:mem=8GB,flops=10T,h2d=12GB/s,d2h=12GB/s,p2p=10GB/s "
     "sim:mem=6GB,flops=5T,h2d=6GB/s,d2h=6GB/s,p2p=6GB/s",
     ""},
    {"deep: 1000 layers, batch 1024, 8 devices", "", 1000, 1024, 512, 1024, 8, "sim*8:mem=16GB",
     ""},
    {"deep: 1000 layers, microbatch auto", "", 1000, 1024, 512, 1024, 0, "sim*8:mem=16GB", ""},
    {"deep: 1000 layers, data parallel", "", 1000, 1024, 512, 1024, 8, "sim*8:mem=16GB", "", 8},
    {"deep: 1000 layers, 1024 microbatches", "", 1000, 1024, 512, 1024, 1, "sim*8:mem=11GB", "2TB"},
    {"deep: the same on 16 devices", "", 1000, 1024, 512, 1024, 1, "sim*16:mem=11GB", "2TB"},
    {"deep: batch 4096, microbatch auto", "", 1000, 1024, 512, 4096, 0, "sim*8:mem=11GB", "2TB"},
    {"deep: 16384 microbatches", "", 1000, 1024, 512, 16384, 1, "sim*8:mem=11GB", "16TB"},
    {"gpt2-124m 4 devices, 16384 microbatches", "gpt2-124m", 0, 0, 256, 16384, 1,
     "sim*4:mem=512MiB", ""},
    {"gpt2-124m 4 devices, the same, parallel", "gpt2-124m", 0, 0, 256, 16384, 1,
     "sim*4:mem=512MiB", "", 4},
    {"gpt2-124m 16 devices, batch 4096, auto", "gpt2-124m", 0, 0, 256, 4096, 0, "sim*16:mem=512MiB",
     ""},
    {"1t: 8 devices of 80 GB, host 2 TB", "", 128, 25600, 1024, 8, 1, kLargeServer, "2TB"},
    {"1t: the same with a host of 16 TB", "", 128, 25600, 1024, 8, 1, kLargeServer, "16TB"},
};

model::ModelSpec ModelOf(const Case& c) {
  if (c.preset[0] != '\0') {
    return model::BuildModelSpec(
        *model::ParseModelConfig(*model::PresetConfigJson(c.preset), c.preset), c.tokens);
  }
  model::ModelConfig config =
      *model::ParseModelConfig(*model::PresetConfigJson("gpt2-124m"), c.name);
  config.hidden_size = c.hidden;
  config.intermediate_size = 4 * c.hidden;
  config.num_heads = config.num_kv_heads = static_cast<int>(c.hidden / 128);
  config.head_dim = 128;
  config.num_layers = static_cast<int>(c.layers - 2);
  return model::BuildModelSpec(config, c.tokens);
}

double Seconds(const std::chrono::steady_clock::time_point& since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

long PeakMegabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

void Run(const Case& c) {
  const model::ModelSpec model = ModelOf(c);
  job::JobSpec job;
  job.sequence_length = c.tokens;
  job.global_batch_size = c.batch;
  job.micro_batch_size = c.microbatch;
  if (c.replicas > 0) job.mode = "harmony-dp";
  job.virtual_replicas = c.replicas;
  plan::MachineSpec machine;
  const std::string spec = c.devices;
  machine.devices = *plan::ParseDevices(absl::StrContains(spec, "flops") ? spec : spec + kServer);
  if (c.host_memory[0] != '\0') machine.host_memory = *ParseBytes(c.host_memory);
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<planner::PlanResult> result = planner::MakePlan(model, job, machine);
  const double seconds = Seconds(begin);
  std::printf("%-40s %6.2f s ", c.name, seconds);
  if (!result.ok()) {
    std::printf("does not fit: %s\n", std::string(result.status().message()).c_str());
    return;
  }
  const plan::Plan& plan = result->plan;
  const planner::SearchReport& report = result->report;
  std::printf(
      "%7lld bounded %5lld run dry  step %10.4f s, its bound %10.4f s  gap %5.1f%%  %zu+%zu "
      "groups, "
      "microbatch %lld, peak %ld MB%s\n",
      static_cast<long long>(report.bounded), static_cast<long long>(report.simulations),
      result->estimate.step.seconds(), report.simulated.front().bound.step.seconds(),
      100 * (1 - report.lower_bound.seconds() / result->estimate.step.seconds()),
      plan.forward_groups.size(), plan.backward_groups.size(),
      static_cast<long long>(plan.microbatch_size), PeakMegabytes(),
      report.exhaustive ? ", proved" : "");
}

// Each command starts and ends.
void SimulatorSpeed() {
  const model::ModelSpec model = ModelOf(kCases[1]);
  job::JobSpec job;
  job.sequence_length = 256;
  job.global_batch_size = 32;
  job.micro_batch_size = 2;
  plan::MachineSpec machine;
  machine.devices = *plan::ParseDevices(std::string("sim*4:mem=512MiB") + kServer);
  const absl::StatusOr<planner::PlanResult> result = planner::MakePlan(model, job, machine);
  if (!result.ok()) return;
  const dispatch::AnalyticCosts costs(model, result->plan, machine.devices);
  int64_t events = 0;
  auto begin = std::chrono::steady_clock::now();
  while (Seconds(begin) < 1) {
    const absl::StatusOr<planner::Estimate> estimate =
        planner::EvaluatePlan(model, result->plan, costs);
    if (estimate.ok()) events += 2 * estimate->commands;
  }
  std::printf("evaluation: %.2f M events/s (start and end of each command)\n",
              static_cast<double>(events) / Seconds(begin) * 1e-6);
  events = 0;
  begin = std::chrono::steady_clock::now();
  sim::SimOptions options;
  options.end_step = 3;
  while (Seconds(begin) < 1) events += sim::Simulate(model, result->plan, costs, options).events;
  std::printf("simulator with messages and checked memory: %.2f M events/s\n",
              static_cast<double>(events) / Seconds(begin) * 1e-6);
}

}  // namespace
}  // namespace harmony::bench

int main(int argc, char** argv) {
  bool all = argc == 1, speed = all;
  for (int i = 1; i < argc; ++i) speed = speed || absl::StrContains("speed", argv[i]);
  for (const harmony::bench::Case& c : harmony::bench::kCases) {
    bool wanted = all;
    for (int i = 1; i < argc; ++i) wanted = wanted || absl::StrContains(c.name, argv[i]);
    if (wanted) harmony::bench::Run(c);
  }
  if (speed) harmony::bench::SimulatorSpeed();
  return 0;
}
