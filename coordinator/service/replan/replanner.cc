#include "coordinator/service/replan/replanner.h"

#include <utility>

namespace harmony::service {

Replanner::~Replanner() {
  if (thread_.joinable()) thread_.join();
}

void Replanner::Search(ReplanRequest request, std::function<void(const ReplanAnswer&)> done) {
  if (thread_.joinable()) thread_.join();  // it has posted its result already
  busy_ = true;
  thread_ = std::thread([this, request = std::move(request), done = std::move(done)] {
    ReplanAnswer answer = SearchAgain(request);
    mailbox_->Post([this, done, answer = std::move(answer)] {
      busy_ = false;
      done(answer);
    });
  });
}

}  // namespace harmony::service
