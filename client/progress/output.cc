#include "client/progress/output.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace harmony::client {
namespace {

constexpr size_t kMostPending = 1 << 20;

}  // namespace

void Output::Write(absl::string_view text) {
  if (pending_.size() < kMostPending) pending_.append(text.data(), text.size());
  while (!pending_.empty()) {
    pollfd waits[] = {{STDOUT_FILENO, POLLOUT, 0}, {interrupt_, POLLIN, 0}};
    if (poll(waits, 2, hurried_ ? 0 : -1) < 0 && errno != EINTR) return pending_.clear();
    if ((waits[0].revents & POLLOUT) == 0) {
      if (waits[0].revents != 0) return pending_.clear();  // nobody reads any more
      if (hurried_ || waits[1].revents != 0) return;
      continue;
    }
    // A pipe that has room takes so much at once.
    const size_t size = std::min<size_t>(pending_.size(), PIPE_BUF);
    const ssize_t written = write(STDOUT_FILENO, pending_.data(), size);
    if (written < 0 && errno != EINTR && errno != EAGAIN) return pending_.clear();
    if (written > 0) pending_.erase(0, static_cast<size_t>(written));
  }
}

}  // namespace harmony::client
