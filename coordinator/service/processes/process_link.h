#pragma once

// The coordinator's end of one attach stream, as the loop sees it.

#include <memory>

#include "absl/status/status.h"

namespace harmony::v1 {
class ToProcess;
}  // namespace harmony::v1

namespace harmony::service {

// Implemented by the gRPC service. Thread-safe; never blocks.
class ProcessLink {
 public:
  virtual ~ProcessLink() = default;
  // Queues a message; dropped when the stream is gone.
  virtual void Send(v1::ToProcess message) = 0;
  // Ends the stream with this status after what is queued has been sent.
  virtual void Close(absl::Status status) = 0;
};

}  // namespace harmony::service
