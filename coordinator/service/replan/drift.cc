#include "coordinator/service/replan/drift.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"

namespace harmony::service {

std::optional<std::string> DriftMonitor::OnStep(double seconds) {
  seconds_.push_back(seconds);
  if (seconds_.size() > kSteps) seconds_.pop_front();
  if (seconds_.size() < kSteps || predicted_ <= 0) return std::nullopt;
  std::vector<double> sorted(seconds_.begin(), seconds_.end());
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[kSteps / 2];
  drift_ = median / predicted_ - 1;
  const auto off_by = [&](double tolerance) {
    return median > predicted_ * (1 + tolerance) || median * (1 + tolerance) < predicted_;
  };
  steps_back_ = off_by(kToleranceBack) ? 0 : steps_back_ + 1;
  const bool drifts = drifting_ ? steps_back_ < kStepsBack : off_by(kTolerance);
  if (drifts == drifting_) return std::nullopt;
  drifting_ = drifts;
  const std::string figures =
      absl::StrFormat("%.3g s in the median of the last %d, %.3g s predicted (%+.0f%%)", median,
                      kSteps, predicted_, 100 * drift_);
  return drifts ? "steps drift from what the plan says: " + figures
                : "steps are as the plan says again: " + figures;
}

}  // namespace harmony::service
