#pragma once

// The thread that searches a plan again while the job runs on.

#include <functional>
#include <thread>

#include "coordinator/service/mailbox.h"
#include "coordinator/service/replan/replan.h"

namespace harmony::service {

// Owner: PlanChanges; loop thread only. One search at a time.
class Replanner {
 public:
  explicit Replanner(Mailbox* mailbox) : mailbox_(mailbox) {}
  ~Replanner();  // waits for the search

  bool busy() const { return busy_; }
  // `done` runs on the loop, unless the mailbox is closed by then. REQUIRES: not busy.
  void Search(ReplanRequest request, std::function<void(const ReplanAnswer&)> done);

 private:
  Mailbox* const mailbox_;
  std::thread thread_;
  bool busy_ = false;
};

}  // namespace harmony::service
