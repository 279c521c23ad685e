#pragma once

// Which processes have taken a job up, and which it waits for. PURE: JobRun tells what happens, and
// decides what becomes of the job.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/base/units.h"
#include "coordinator/runner/failure.h"
#include "coordinator/runner/job_runner.h"

namespace harmony::service {

class Gathering {
 public:
  // Deaths in a row that a process may die by itself while the job is being set up.
  static constexpr int kMaxEarlyDeaths = 5;
  // How long one may be away.
  static constexpr Nanos kDeadline = Seconds(300);

  explicit Gathering(Nanos now) : since_(now) {}

  // A process is there, and knows how many incarnations before it died by themselves. Returns how
  // often it has died so during set-ups in a row, where that is too often.
  std::optional<int> OnAttached(const runner::ProcessId& id, uint32_t own_deaths, Nanos now);
  // Its stream is gone. True: it had taken the job up.
  bool OnLost(const runner::ProcessId& id, uint64_t session, uint32_t own_deaths);
  // It has taken the job up. True: it could not before.
  bool OnReady(const runner::ProcessId& id, uint64_t session);
  // It cannot, and may yet: returns the pause before it is asked again.
  Nanos OnRefused(const runner::ProcessId& id, Nanos now);
  // The next tries are due at once.
  void Hurry();
  // To be asked again now. Nobody is asked a second time before it has answered: what it does with
  // the second setting up would meet a generation that the first answer has begun.
  std::vector<runner::ProcessId> TakeDue(Nanos now);

  // Since when nothing has been heard of those that are missing; now where none is. To be called
  // before kDeadline is looked at.
  Nanos Since(const std::vector<runner::ProcessId>& awaited, Nanos now);
  // Those of `required` that have not taken the job up.
  std::vector<runner::ProcessId> Awaited(const std::vector<runner::ProcessId>& required) const;
  bool refused() const { return !refused_.empty(); }

 private:
  std::map<runner::ProcessId, uint64_t> ready_;  // the session that has
  // Before they were ready, in a row: deaths by themselves; what own_deaths the last one knew.
  std::map<runner::ProcessId, int> early_deaths_;
  std::map<runner::ProcessId, uint32_t> lost_early_;
  std::map<runner::ProcessId, runner::BackOff> refused_;
  std::set<runner::ProcessId> asked_;  // who is there, and has not answered
  Nanos since_;
};

}  // namespace harmony::service
