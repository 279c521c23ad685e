#include "coordinator/service/processes/arena_fence.h"

#include <spdlog/spdlog.h>

namespace harmony::service {

ArenaFence::ArenaFence(Members* members, bool predecessor) : members_(members) {
  if (!predecessor) return;
  for (const runner::ProcessId& id : members_->Required()) unseen_.insert(id);
}

void ArenaFence::Close() {
  holders_.clear();
  for (const Member* member : members_->All()) holders_.insert(member->id);
}

bool ArenaFence::IsQuiet() { return members_->DepartedAreDead() && holders_.empty(); }

void ArenaFence::KillHolders(const char* reason) {
  for (const runner::ProcessId& id : holders_) {
    spdlog::error("event=kill process=\"{}\" reason=\"{}\"", DebugString(id), reason);
    if (Member* member = members_->Find(id)) member->handle.Kill();
  }
}

}  // namespace harmony::service
