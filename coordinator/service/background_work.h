#pragma once

// What keeps a core busy for seconds, as planning does, on the way to an answer: at a low priority,
// and a few at a time, so that it takes from no step.

#include <functional>

#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace harmony::service {

class BackgroundWork {
 public:
  // Runs `work` on a thread of its own and returns what it came to. ResourceExhausted, at once,
  // when too many wait for their turn. Any thread.
  absl::Status Run(const std::function<absl::Status()>& work);

 private:
  Mutex mutex_;
  CondVar changed_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace harmony::service
