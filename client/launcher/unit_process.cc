#include "client/launcher/unit_process.h"

#include <poll.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/launcher/child_process.h"
#include "client/launcher/services.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace harmony::client {
namespace {

// An owner that was killed is back in a fraction of a second.
constexpr Nanos kAnswerPatience = Seconds(10);
constexpr int kPauseMs = 50;

absl::StatusOr<StartAnswer> AskPatiently(const std::string& socket, const StartRequest& request) {
  const Nanos deadline = MonotonicClock().Now() + kAnswerPatience;
  for (;;) {
    absl::StatusOr<StartAnswer> answer = AskToStart(socket, request);
    if (!absl::IsUnavailable(answer.status()) || MonotonicClock().Now() > deadline) return answer;
    poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace

absl::Status BecomeProcess(const RuntimePaths& paths, const std::string& bin_dir,
                           const StartRequest& request, const AccessOptions& access) {
  HARMONY_ASSIGN_OR_RETURN(const StartAnswer answer, AskPatiently(paths.memory_socket(), request));
  for (Service& service :
       AllServices({paths, bin_dir, answer.devices, "", access}, answer.memory)) {
    if (service.role != request.role || service.device != request.device) continue;
    service.child.environment.emplace_back("HARMONY_INCARNATION", absl::StrCat(answer.incarnation));
    service.child.environment.emplace_back("HARMONY_OWN_DEATHS", absl::StrCat(answer.own_deaths));
    return Become(service.child);
  }
  return absl::InternalError(
      absl::StrCat("the owner of the memory knows ", request.role, ", this program does not"));
}

bool DiedByItself(absl::string_view service_result, absl::string_view exit_code,
                  absl::string_view exit_status) {
  const bool killed = exit_code == "killed" && exit_status == "KILL";
  return service_result == "watchdog" || service_result == "oom-kill" ||
         (service_result != "success" && !killed);
}

}  // namespace harmony::client
