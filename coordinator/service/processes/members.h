#pragma once

// Who is attached: one process a role and device, each with its stream and its pidfd.
//
// A process that takes the place of another is let in only once the other's death is confirmed: for
// shared memory only death is a fence.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/runner/job_runner.h"
#include "coordinator/service/processes/process_handle.h"
#include "coordinator/service/processes/process_link.h"
#include "harmony/v1/gpu.pb.h"

namespace harmony::v1 {
class Hello;
}  // namespace harmony::v1

namespace harmony::service {

// "swapper, worker 3"
std::string DebugString(const std::vector<runner::ProcessId>& processes);

// Tasks and transfers of paced devices, and those of them that took over 2% longer than modelled.
struct Pacing {
  int64_t paced = 0, overruns = 0;
};

struct Member {
  runner::ProcessId id;
  uint64_t session = 0;  // of the stream; never used twice
  uint32_t incarnation = 0;
  uint32_t own_deaths = 0;  // incarnations before it that nobody killed
  std::string computes_on;  // of a worker: what its results' bits depend on besides the job
  ProcessHandle handle;
  std::shared_ptr<ProcessLink> link;
  // As last reported.
  Pacing pacing;                           // since the process started
  std::vector<v1::GpuReadings> gpus = {};  // of the swapper: by device; empty: they tell nothing
};

struct MemberEvents {
  std::function<void(const Member&)> attached;  // Welcome has been sent
  std::function<void(const Member&)> lost;      // its stream is gone
};

// Owner: Coordinator; loop thread only.
class Members {
 public:
  Members(int num_devices, MemberEvents events);

  // A stream has said Hello. It is refused (and closed), let in, or made to wait for the death of
  // its predecessor.
  void OnHello(uint64_t session, const std::shared_ptr<ProcessLink>& link, const v1::Hello& hello);
  void OnSessionClosed(uint64_t session);
  // Lets in those whose predecessors have died meanwhile.
  void OnTick();
  // Nobody writes but those attached: all that have left are dead. Kills those that are not.
  bool DepartedAreDead();

  // Null when it is not attached.
  Member* Find(const runner::ProcessId& id);
  Member* FindSession(uint64_t session);
  std::vector<Member*> All();
  // What the workers' results depend on besides the job; each once, in the order of the devices.
  std::vector<std::string> ComputesOn() const;
  // All that a job needs, attached or not.
  std::vector<runner::ProcessId> Required() const;
  void SendToAll(const v1::ToProcess& message);

 private:
  struct Waiting {
    uint64_t session = 0;
    std::shared_ptr<ProcessLink> link;
    runner::ProcessId id;
    uint32_t incarnation = 0, own_deaths = 0;
    std::string computes_on;
    ProcessHandle handle;
  };
  absl::StatusOr<Waiting> Check(uint64_t session, std::shared_ptr<ProcessLink> link,
                                const v1::Hello& hello) const;
  // Lets it in, or keeps it waiting; who is in its place has to go.
  void Admit(Waiting waiting);
  // False while the predecessor lives.
  bool MayEnter(const Waiting& waiting);
  void Enter(Waiting waiting);
  void Remove(std::map<runner::ProcessId, Member>::iterator member);

  const int num_devices_;
  const MemberEvents events_;
  std::map<runner::ProcessId, Member> members_;
  std::map<runner::ProcessId, ProcessHandle> departed_;  // stream gone, death not yet confirmed
  std::vector<Waiting> waiting_;
};

}  // namespace harmony::service
