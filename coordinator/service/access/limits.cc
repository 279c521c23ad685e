#include "coordinator/service/access/limits.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace harmony::service {

void TokenBucket::Fill(Nanos now) {
  const double seconds = static_cast<double>((now - filled_at_).count()) / 1e9;
  if (seconds <= 0) return;
  tokens_ = std::min(burst_, tokens_ + seconds * per_second_);
  filled_at_ = now;
}

bool TokenBucket::Take(Nanos now, double tokens) {
  Fill(now);
  if (tokens_ < tokens) return false;
  tokens_ -= tokens;
  return true;
}

Nanos TokenBucket::ReadyAt(Nanos now, double tokens) {
  Fill(now);
  if (tokens_ >= tokens) return now;
  return now + Nanos::FromSeconds((tokens - tokens_) / per_second_);
}

PeerAccount::PeerAccount(const PeerLimits& limits)
    : limits_(limits),
      calls_(limits.calls_per_second, limits.calls_burst),
      refusals_(limits.refusals_per_second, limits.refusals_burst),
      connects_(limits.connects_per_second, limits.connects_burst) {}

bool PeerAccount::Connect(Nanos now, int open) {
  return now >= cut_off_until_ && open < limits_.connections && connects_.Take(now);
}

Verdict PeerAccount::Call(Nanos now, double weight) {
  if (calls_.Take(now, weight)) return Verdict::kServe;
  if (refusals_.Take(now)) return Verdict::kRefuse;
  cut_off_until_ = now + limits_.cut_off;
  return Verdict::kCutOff;
}

double WeightOf(const std::string& path) {
  for (const char* method : {"/Submit", "/Plan", "/Resume", "/GetTimeline"}) {
    if (absl::EndsWith(path, method)) return 10;
  }
  return 1;
}

}  // namespace harmony::service
