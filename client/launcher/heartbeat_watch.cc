#include "client/launcher/heartbeat_watch.h"

#include <algorithm>

namespace harmony::client {

void HeartbeatWatch::OnStart(Nanos now) {
  beats_ = 0;
  since_ = now;
}

bool HeartbeatWatch::OnLook(uint64_t beats, Nanos now) {
  if (beats != beats_) {
    beats_ = beats;
    since_ = now;
    slow_starts_ = 0;
    return false;
  }
  if (limit_ == Nanos(0) || now - since_ < limit()) return false;
  since_ = now;
  if (beats_ == 0) slow_starts_ = std::min(slow_starts_ + 1, kMostDoublings);
  return true;
}

}  // namespace harmony::client
