#include "bench/published_planner/cost_model/layer_profile.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace harmony::published {
namespace {

// No real figure comes near; sums of them stay exact or at least finite.
constexpr int64_t kMaxBytes = int64_t{1} << 50;

absl::Status Wrong(absl::string_view field, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", problem));
}

absl::Status CheckLength(absl::string_view field, size_t length, size_t wanted,
                         absl::string_view what) {
  if (length == wanted) return absl::OkStatus();
  return Wrong(field,
               absl::StrCat("has ", length, " entries instead of ", wanted, ", one per ", what));
}

absl::Status CheckBytes(const std::string& field, int64_t value) {
  if (value >= 0 && value <= kMaxBytes) return absl::OkStatus();
  return Wrong(field, absl::StrCat("is ", value, ": bytes must lie in 0..", kMaxBytes));
}

absl::Status CheckSeconds(const std::string& field, double value) {
  if (std::isfinite(value) && value >= 0 && value <= limits::kMostSeconds) return absl::OkStatus();
  return Wrong(field, absl::StrCat("is ", value, ": times must be finite, not negative, at most ",
                                   limits::kMostSeconds, " seconds"));
}

absl::Status CheckBytesPerLayer(absl::string_view field, const std::vector<int64_t>& values,
                                size_t layers) {
  HARMONY_RETURN_IF_ERROR(CheckLength(field, values.size(), layers, "layer"));
  for (size_t l = 0; l < layers; ++l) {
    HARMONY_RETURN_IF_ERROR(CheckBytes(absl::StrCat(field, "[", l, "]"), values[l]));
  }
  return absl::OkStatus();
}

absl::Status CheckPhase(absl::string_view name, const PhaseProfile& phase, size_t layers) {
  const size_t sizes = phase.microbatch.size();
  if (sizes == 0) return Wrong(absl::StrCat(name, ".microbatch"), "is empty");
  for (size_t k = 0; k < sizes; ++k) {
    const int64_t before = k == 0 ? 0 : phase.microbatch[k - 1];
    if (phase.microbatch[k] <= before) {
      return Wrong(absl::StrCat(name, ".microbatch[", k, "]"),
                   absl::StrCat("is ", phase.microbatch[k], " after ", before,
                                ": sizes must be positive and ascending"));
    }
  }
  const std::string time = absl::StrCat(name, ".time_s"), peak = absl::StrCat(name, ".peak_bytes");
  HARMONY_RETURN_IF_ERROR(CheckLength(time, phase.time_s.size(), layers, "layer"));
  HARMONY_RETURN_IF_ERROR(CheckLength(peak, phase.peak_bytes.size(), layers, "layer"));
  for (size_t l = 0; l < layers; ++l) {
    const std::string time_row = absl::StrCat(time, "[", l, "]");
    const std::string peak_row = absl::StrCat(peak, "[", l, "]");
    HARMONY_RETURN_IF_ERROR(
        CheckLength(time_row, phase.time_s[l].size(), sizes, "microbatch size"));
    HARMONY_RETURN_IF_ERROR(
        CheckLength(peak_row, phase.peak_bytes[l].size(), sizes, "microbatch size"));
    for (size_t k = 0; k < sizes; ++k) {
      HARMONY_RETURN_IF_ERROR(
          CheckSeconds(absl::StrCat(time_row, "[", k, "]"), phase.time_s[l][k]));
      HARMONY_RETURN_IF_ERROR(
          CheckBytes(absl::StrCat(peak_row, "[", k, "]"), phase.peak_bytes[l][k]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProfile(const LayerProfile& profile) {
  const size_t layers = profile.param_bytes.size();
  if (layers == 0) return Wrong("layers", "is 0: there is nothing to plan");
  const struct {
    const char* field;
    const std::vector<int64_t>& values;
  } byte_fields[] = {{"param_bytes", profile.param_bytes},
                     {"grad_bytes", profile.grad_bytes},
                     {"buffer_bytes", profile.buffer_bytes},
                     {"optimizer_state_bytes", profile.optimizer_state_bytes},
                     {"input_bytes_per_sample", profile.input_bytes_per_sample},
                     {"output_bytes_per_sample", profile.output_bytes_per_sample}};
  for (const auto& [field, values] : byte_fields) {
    HARMONY_RETURN_IF_ERROR(CheckBytesPerLayer(field, values, layers));
  }
  for (size_t l = 0; l < layers; ++l) {
    const int64_t next = l + 1 < layers ? profile.input_bytes_per_sample[l + 1] : 0;
    if (profile.output_bytes_per_sample[l] != next) {
      return Wrong(absl::StrCat("output_bytes_per_sample[", l, "]"),
                   absl::StrCat("is ", profile.output_bytes_per_sample[l],
                                ", but the next layer's input_bytes_per_sample is ", next));
    }
    if (profile.grad_bytes[l] != profile.param_bytes[l]) {
      return Wrong(absl::StrCat("grad_bytes[", l, "]"),
                   absl::StrCat("is ", profile.grad_bytes[l], ", but param_bytes is ",
                                profile.param_bytes[l]));
    }
  }
  HARMONY_RETURN_IF_ERROR(
      CheckLength("update_time_s", profile.update_time_s.size(), layers, "layer"));
  for (size_t l = 0; l < layers; ++l) {
    HARMONY_RETURN_IF_ERROR(
        CheckSeconds(absl::StrCat("update_time_s[", l, "]"), profile.update_time_s[l]));
  }
  HARMONY_RETURN_IF_ERROR(CheckPhase("fwd", profile.forward, layers));
  return CheckPhase("bwd", profile.backward, layers);
}

bool Covers(const PhaseProfile& phase, int64_t microbatch) {
  return microbatch >= phase.microbatch.front() && microbatch <= phase.microbatch.back();
}

absl::StatusOr<PhaseAt> At(const PhaseProfile& phase, absl::string_view name, int64_t microbatch) {
  if (!Covers(phase, microbatch)) {
    return absl::OutOfRangeError(absl::StrCat(
        "microbatch ", microbatch, " is outside ", name, ".microbatch, which goes from ",
        phase.microbatch.front(), " to ", phase.microbatch.back()));
  }
  const auto found = std::lower_bound(phase.microbatch.begin(), phase.microbatch.end(), microbatch);
  const size_t high = found - phase.microbatch.begin();
  const size_t layers = phase.time_s.size();
  PhaseAt at{std::vector<double>(layers), std::vector<int64_t>(layers)};
  for (size_t l = 0; l < layers; ++l) {
    if (*found == microbatch) {
      at.time_s[l] = phase.time_s[l][high];
      at.peak_bytes[l] = phase.peak_bytes[l][high];
      continue;
    }
    const double below = static_cast<double>(phase.microbatch[high - 1]);
    const double width = static_cast<double>(*found) - below;
    const double t0 = phase.time_s[l][high - 1], t1 = phase.time_s[l][high];
    const auto m0 = static_cast<double>(phase.peak_bytes[l][high - 1]);
    const auto m1 = static_cast<double>(phase.peak_bytes[l][high]);
    const double offset = static_cast<double>(microbatch) - below;
    at.time_s[l] = t0 + (t1 - t0) / width * offset;
    at.peak_bytes[l] = static_cast<int64_t>(m0 + (m1 - m0) / width * offset);
  }
  return at;
}

}  // namespace harmony::published
