#pragma once

// The simulated coordinator: the real job runner, and around it what the coordinator's service does
// with processes and streams. It may die and start again, and be stopped and go on. PURE.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/runner/job_runner.h"
#include "tests/sim/simulator/sim_lanes.h"
#include "tests/sim/simulator/sim_post.h"
#include "tests/sim/simulator/sim_world.h"
#include "tests/sim/simulator/simulation.h"

namespace harmony::sim {

class SimCoordinator {
 public:
  // All must outlive it. `result` gets what is recorded.
  SimCoordinator(const model::ModelSpec& model, const plan::Plan& plan,
                 const dispatch::CostModel& costs, const SimOptions& options, SimPost& post,
                 SimWorld& world, SimLanes& lanes, std::vector<SimProcess>& processes,
                 SimResult& result);

  void Start();
  void Die() { runner_.reset(); }
  bool alive() const { return runner_ != nullptr; }
  // Of its lives: messages to and from an earlier one are lost.
  uint32_t epoch() const { return epoch_; }
  // It was stopped for that long: its deadlines stood still meanwhile (AttendedClock).
  void Stood(Nanos time) { stood_ += time; }

  void OnMessage(SimMessage message);
  // Tells a process the job once more, if that still has this stream.
  void TellJob(int process, uint64_t session);
  void StopRequested();
  void Inform(const runner::Event& event);

  uint32_t word() const { return word_; }  // the segment's generation
  const dispatch::Dispatcher& dispatcher() const { return runner_->dispatcher(); }
  // How the job has ended.
  const std::optional<absl::Status>& ended() const { return ended_; }
  // An invariant that was broken.
  const absl::Status& broken() const { return broken_; }

 private:
  // What it knows of a process.
  struct Member {
    uint64_t session = 0;  // 0: none
    uint32_t incarnation = 0;
    bool ready = false;  // has set the job up
  };

  Nanos Now() const { return post_.now() - stood_; }
  void SendTo(int process, SimMessage::What what, uint32_t generation,
              std::vector<command::Command> commands = {});
  void Welcome(int process);
  void Lose(int process);
  void SendKill(int process);

  void Do(runner::RaiseGeneration& action);
  void Do(runner::AskQuiesce& action);
  void Do(runner::KillProcess& action);
  void Do(runner::ReadRecords& action);
  void Do(runner::StartGeneration& action);
  void Do(runner::Send& action);
  void Do(runner::StepCompleted& action);
  void Do(runner::JobEnded& action);
  void Do(runner::Report&) {}

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const dispatch::CostModel& costs_;
  const SimOptions& options_;
  SimPost& post_;
  SimWorld& world_;
  SimLanes& lanes_;
  std::vector<SimProcess>& processes_;
  SimResult& result_;
  std::unique_ptr<runner::JobRunner> runner_;
  std::vector<Member> members_;  // by process
  uint32_t word_ = 0, epoch_ = 0;
  Nanos stood_;
  int64_t reported_ = -1;
  bool stop_requested_ = false;
  std::optional<absl::Status> ended_;
  absl::Status broken_;
};

}  // namespace harmony::sim
