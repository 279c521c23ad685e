#include "coordinator/service/processes/members.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/build_identity.h"
#include "common/base/status.h"
#include "harmony/v1/attach.pb.h"

namespace harmony::service {

std::string DebugString(const std::vector<runner::ProcessId>& processes) {
  return absl::StrJoin(processes, ", ", [](std::string* out, const runner::ProcessId& id) {
    absl::StrAppend(out, DebugString(id));
  });
}

Members::Members(int num_devices, MemberEvents events)
    : num_devices_(num_devices), events_(std::move(events)) {}

absl::StatusOr<Members::Waiting> Members::Check(uint64_t session, std::shared_ptr<ProcessLink> link,
                                                const v1::Hello& hello) const {
  Waiting waiting;
  waiting.session = session;
  waiting.link = std::move(link);
  waiting.incarnation = hello.incarnation();
  waiting.own_deaths = hello.own_deaths();
  waiting.computes_on = hello.computes_on();
  if (hello.version() != BuildIdentity()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this coordinator was built as ", BuildIdentity(), ", the process as '", hello.version(),
        "': stop all (harmony down), and start programs of one build"));
  }
  switch (hello.role()) {
    case v1::ROLE_SWAPPER:
      waiting.id = {runner::Role::kSwapper, 0};
      break;
    case v1::ROLE_HOST_WORKER:
      waiting.id = {runner::Role::kHostWorker, 0};
      break;
    case v1::ROLE_WORKER:
      waiting.id = {runner::Role::kWorker, hello.device()};
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("Hello: role is ", hello.role()));
  }
  if (waiting.id.device < 0 ||
      (waiting.id.role == runner::Role::kWorker && waiting.id.device >= num_devices_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Hello: device is ", hello.device(), "; this coordinator has ", num_devices_));
  }
  HARMONY_ASSIGN_OR_RETURN(waiting.handle, ProcessHandle::Open(hello.pid()));
  return waiting;
}

void Members::OnHello(uint64_t session, const std::shared_ptr<ProcessLink>& link,
                      const v1::Hello& hello) {
  absl::StatusOr<Waiting> waiting = Check(session, link, hello);
  if (!waiting.ok()) {
    spdlog::warn("event=refused session={} pid={} reason=\"{}\"", session, hello.pid(),
                 std::string(waiting.status().message()));
    // A process that has died meanwhile, or is about to, needs no verdict that it would obey for
    // ever.
    link->Close(absl::IsNotFound(waiting.status())
                    ? absl::UnavailableError(waiting.status().message())
                    : waiting.status());
    return;
  }
  Admit(*std::move(waiting));
}

void Members::Admit(Waiting waiting) {
  const auto old = members_.find(waiting.id);
  if (old != members_.end()) {
    // The loss of the old stream has not been noticed yet. The same process dialling again has
    // quiesced; another one takes the place of one that must die.
    if (old->second.handle.pid() != waiting.handle.pid()) old->second.handle.Kill();
    old->second.link->Close(absl::AbortedError("replaced by a newer stream"));
    Remove(old);
  }
  if (MayEnter(waiting)) {
    Enter(std::move(waiting));
  } else {
    waiting_.push_back(std::move(waiting));
  }
}

bool Members::MayEnter(const Waiting& waiting) {
  // In the order in which they came: else one that came before would take the later one's place.
  for (const Waiting& earlier : waiting_) {
    if (earlier.id == waiting.id) return false;
  }
  const auto departed = departed_.find(waiting.id);
  if (departed == departed_.end()) return true;
  if (!departed->second.HasExited() && departed->second.pid() != waiting.handle.pid()) {
    departed->second.Kill();
    return false;
  }
  departed_.erase(departed);
  return true;
}

void Members::Enter(Waiting waiting) {
  spdlog::info("event=attached process=\"{}\" pid={} incarnation={}", DebugString(waiting.id),
               waiting.handle.pid(), waiting.incarnation);
  Member& member = members_[waiting.id];
  member = {waiting.id,
            waiting.session,
            waiting.incarnation,
            waiting.own_deaths,
            std::move(waiting.computes_on),
            std::move(waiting.handle),
            std::move(waiting.link),
            {}};
  v1::ToProcess message;
  message.mutable_welcome()->set_num_devices(num_devices_);
  member.link->Send(std::move(message));
  events_.attached(member);
}

void Members::Remove(std::map<runner::ProcessId, Member>::iterator position) {
  Member member = std::move(position->second);
  members_.erase(position);
  spdlog::info("event=lost process=\"{}\" pid={}", DebugString(member.id), member.handle.pid());
  events_.lost(member);
  departed_[member.id] = std::move(member.handle);
}

void Members::OnSessionClosed(uint64_t session) {
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    if (it->second.session == session) return Remove(it);
  }
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                [&](const Waiting& w) { return w.session == session; }),
                 waiting_.end());
}

void Members::OnTick() {
  for (Waiting& waiting : std::exchange(waiting_, {})) Admit(std::move(waiting));
}

bool Members::DepartedAreDead() {
  std::erase_if(departed_, [](const auto& entry) { return entry.second.HasExited(); });
  for (const auto& [id, handle] : departed_) handle.Kill();
  return departed_.empty();
}

Member* Members::Find(const runner::ProcessId& id) {
  const auto found = members_.find(id);
  return found == members_.end() ? nullptr : &found->second;
}

Member* Members::FindSession(uint64_t session) {
  for (auto& [id, member] : members_) {
    if (member.session == session) return &member;
  }
  return nullptr;
}

std::vector<Member*> Members::All() {
  std::vector<Member*> all;
  for (auto& [id, member] : members_) all.push_back(&member);
  return all;
}

std::vector<runner::ProcessId> Members::Required() const {
  std::vector<runner::ProcessId> ids = {{runner::Role::kSwapper, 0},
                                        {runner::Role::kHostWorker, 0}};
  for (int device = 0; device < num_devices_; ++device)
    ids.push_back({runner::Role::kWorker, device});
  return ids;
}

std::vector<std::string> Members::ComputesOn() const {
  std::vector<std::string> all;  // members are in the order of their ids
  for (const auto& [id, member] : members_) {
    const bool known = absl::c_linear_search(all, member.computes_on);
    if (id.role == runner::Role::kWorker && !known) all.push_back(member.computes_on);
  }
  return all;
}

void Members::SendToAll(const v1::ToProcess& message) {
  for (auto& [id, member] : members_) member.link->Send(message);
}

}  // namespace harmony::service
