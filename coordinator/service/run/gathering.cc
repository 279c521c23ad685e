#include "coordinator/service/run/gathering.h"

namespace harmony::service {

std::optional<int> Gathering::OnAttached(const runner::ProcessId& id, uint32_t own_deaths,
                                         Nanos now) {
  since_ = now;  // it has appeared: if it dies now, that is counted
  asked_.insert(id);
  // Only its successor knows whether it died by itself: what is killed from outside says nothing
  // about the job.
  const auto early = lost_early_.find(id);
  if (early == lost_early_.end()) return std::nullopt;
  const bool by_itself = own_deaths > early->second;
  lost_early_.erase(early);
  if (!by_itself || ++early_deaths_[id] <= kMaxEarlyDeaths) return std::nullopt;
  return early_deaths_[id];
}

bool Gathering::OnLost(const runner::ProcessId& id, uint64_t session, uint32_t own_deaths) {
  asked_.erase(id);
  const bool was_refused = refused_.erase(id) > 0;
  const auto ready = ready_.find(id);
  if (ready != ready_.end() && ready->second == session) {
    ready_.erase(ready);
    return true;
  }
  if (!was_refused) lost_early_[id] = own_deaths;
  return false;
}

bool Gathering::OnReady(const runner::ProcessId& id, uint64_t session) {
  asked_.erase(id);
  ready_[id] = session;
  early_deaths_.erase(id);
  return refused_.erase(id) > 0;
}

Nanos Gathering::OnRefused(const runner::ProcessId& id, Nanos now) {
  asked_.erase(id);
  return refused_[id].Failed(now);
}

void Gathering::Hurry() {
  for (auto& [id, tries] : refused_) tries.Hurry();
}

std::vector<runner::ProcessId> Gathering::TakeDue(Nanos now) {
  std::vector<runner::ProcessId> due;
  for (auto& [id, tries] : refused_) {
    if (tries.Due(now) && asked_.insert(id).second) due.push_back(id);
  }
  return due;
}

Nanos Gathering::Since(const std::vector<runner::ProcessId>& awaited, Nanos now) {
  if (awaited.empty() || refused()) since_ = now;
  return since_;
}

std::vector<runner::ProcessId> Gathering::Awaited(
    const std::vector<runner::ProcessId>& required) const {
  std::vector<runner::ProcessId> awaited;
  for (const runner::ProcessId& id : required) {
    if (ready_.count(id) == 0) awaited.push_back(id);
  }
  return awaited;
}

}  // namespace harmony::service
