#include "client/launcher/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "common/ipc/fd_passing.h"

namespace harmony::client {
namespace {

constexpr int64_t kSignsPerLimit = 3;

std::string Take(const char* variable) {
  const char* const text = std::getenv(variable);
  std::string value = text == nullptr ? "" : text;
  unsetenv(variable);
  return value;
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  ServiceManager manager;
  manager.socket_ = Take("NOTIFY_SOCKET");
  int64_t micros = 0, pid = getpid();
  const std::string limit = Take("WATCHDOG_USEC"), whose = Take("WATCHDOG_PID");
  const bool ours = whose.empty() || (absl::SimpleAtoi(whose, &pid) && pid == getpid());
  if (ours && absl::SimpleAtoi(limit, &micros) && micros > 0) {
    manager.interval_ = Nanos(micros * 1000 / kSignsPerLimit);
  }
  return manager;
}

void ServiceManager::Stopping() {
  if (!stopping_) Send("STOPPING=1");
  stopping_ = true;
}

void ServiceManager::Alive(Nanos now) {
  if (interval_ == Nanos(0) || (last_sign_ && now - *last_sign_ < interval_)) return;
  last_sign_ = now;
  Send("WATCHDOG=1");
}

void ServiceManager::Send(const std::string& text) const {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const ipc::UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return;
  (void)sendto(fd.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&address), size);
}

}  // namespace harmony::client
