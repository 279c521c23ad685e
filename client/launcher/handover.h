#pragma once

// How a process that systemd starts comes by what the launcher's children inherit: it asks the
// owner of the memory over a Unix-domain socket of packets, and is sent the descriptors.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/launcher/memory.h"
#include "common/ipc/fd_passing.h"

namespace harmony::client {

// Which process is about to start.
struct StartRequest {
  std::string role;
  int device = -1;
  // Or which has died by itself, instead.
  bool died_by_itself = false;
};
struct StartAnswer {
  std::string devices;  // of all processes
  int64_t incarnation = 0;
  int64_t own_deaths = 0;  // of the incarnations before, those that nobody killed
  Memory memory;
};

// The owner's side. A packet that is no request, or of another build, is refused by an error.
absl::StatusOr<ipc::UniqueFd> ListenForStarts(const std::string& socket_path);
absl::StatusOr<StartRequest> ReceiveStartRequest(int connection);
// With everything but the memory, of which it sends `memory`.
absl::Status SendStartAnswer(int connection, const StartAnswer& answer, const Memory& memory);
// To who has died by itself, and to what is refused.
absl::Status SendStatus(int connection, const absl::Status& status);

// The other side. Unavailable when no owner listens, or it ended meanwhile: worth another try. What
// the owner refuses is an error of its own words.
absl::StatusOr<StartAnswer> AskToStart(const std::string& socket_path, const StartRequest& request);
absl::Status ReportOwnDeath(const std::string& socket_path, StartRequest process);

}  // namespace harmony::client
