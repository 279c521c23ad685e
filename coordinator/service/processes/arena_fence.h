#pragma once

// Who may still write to the arena. It is given back, or to another job, only when nobody does.

#include <set>
#include <vector>

#include "coordinator/service/processes/members.h"

namespace harmony::service {

// A process has stopped writing for a job when it has said so (Quiesced), when it has dialled in
// anew (it quiesces itself before), or when its death is confirmed.
//
// Owner: Coordinator; loop thread only. `members` must outlive it.
class ArenaFence {
 public:
  // `predecessor`: another coordinator has given commands out before. Processes of its time are
  // not known until they dial in.
  ArenaFence(Members* members, bool predecessor);

  void OnAttached(const runner::ProcessId& id) { unseen_.erase(id); }
  void OnQuiesced(const runner::ProcessId& id) { holders_.erase(id); }
  void OnLost(const runner::ProcessId& id) { holders_.erase(id); }

  // From now on everyone who is attached holds the arena until it is quiet.
  void Close();
  // Everyone since then is quiet or dead; kills those who have left and live on.
  bool IsQuiet();
  void KillHolders(const char* reason);
  // Required processes that have not dialled in since a predecessor's time.
  std::vector<runner::ProcessId> Unseen() const { return {unseen_.begin(), unseen_.end()}; }

 private:
  Members* const members_;
  std::set<runner::ProcessId> holders_, unseen_;
};

}  // namespace harmony::service
