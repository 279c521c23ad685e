#pragma once

// The side of a worker or of the swapper in its stream with the coordinator.
//
// Life: Start() -> dial, Hello, messages -> stream lost -> `on_lost` -> dial again -> ... ->
// Shutdown(). Dialling again starts only after `on_lost` has returned: a process that attaches anew
// has thereby quiesced itself.
//
// Threads: one reader thread of the client runs all callbacks, never two at a time; one writer
// thread sends. Send() and Shutdown() may be called from any thread but Shutdown() not from a
// callback. No lock is held while a callback runs.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace harmony::v1 {
class FromProcess;
class Hello;
class ToProcess;
}  // namespace harmony::v1

namespace harmony::rpc {

struct AttachCallbacks {
  // Fills in the Hello of the next dial (role, device, incarnation, pid, generation); the version
  // is set by the client.
  std::function<void(v1::Hello*)> hello;
  std::function<void(const v1::ToProcess&)> on_message;
  // The stream broke after a Welcome (the coordinator died or closed it). Finish what runs, drop
  // the queues, then return.
  std::function<void()> on_lost;
  // The coordinator does not want this process (another build, a second worker of a device, ...).
  // It does not dial again; the program should end with this message.
  std::function<void(const absl::Status&)> on_refused;
};

class AttachClient {
 public:
  AttachClient(std::string socket_path, AttachCallbacks callbacks);
  ~AttachClient();  // as Shutdown
  AttachClient(const AttachClient&) = delete;
  AttachClient& operator=(const AttachClient&) = delete;

  void Start();

  // Queues a message; never blocks on the network. While no stream is up the message is dropped:
  // what it says belongs to a generation that the loss of the stream has ended.
  void Send(v1::FromProcess message);

  // Sends what is queued (for at most a second), ends the stream, joins the threads; no callback
  // runs afterwards, and on_lost is not called for it. Idempotent.
  void Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace harmony::rpc
