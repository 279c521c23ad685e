#pragma once

// Holds measured step times against the predicted one.

#include <cstddef>
#include <deque>
#include <optional>
#include <string>

namespace harmony::service {

// Steps drift when the median of the last few is off by more than 15%, and no longer when it is off
// by less than 10% for a while: steps between the two, or close to one, are not told of all the
// time. Owner: StepLog.
class DriftMonitor {
 public:
  static constexpr size_t kSteps = 5;
  static constexpr double kTolerance = 0.15, kToleranceBack = 0.10;
  static constexpr int kStepsBack = 20;

  explicit DriftMonitor(double predicted_seconds) : predicted_(predicted_seconds) {}

  // Of every step but the first of a generation. A line for the user when steps begin to drift, and
  // when they are as predicted again.
  std::optional<std::string> OnStep(double seconds);

  double predicted_seconds() const { return predicted_; }
  // Measured over predicted, less 1; 0 while there are too few steps.
  double drift() const { return drift_; }
  bool drifting() const { return drifting_; }

 private:
  double predicted_;
  std::deque<double> seconds_;
  double drift_ = 0;
  bool drifting_ = false;
  int steps_back_ = 0;  // in a row within kToleranceBack
};

}  // namespace harmony::service
