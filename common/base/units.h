#pragma once

// Units as types: Bytes for sizes and offsets, Nanos for times, BytesPerSecond and FlopsPerSecond
// for rates. Never unwrapped at a seam between modules. Parsing and printing live here and nowhere
// else.

#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony {

// A size or an offset in bytes. Signed, so that differences are exact.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(int64_t count) : count_(count) {}
  constexpr int64_t count() const { return count_; }

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes operator+(Bytes o) const { return Bytes(count_ + o.count_); }
  constexpr Bytes operator-(Bytes o) const { return Bytes(count_ - o.count_); }
  constexpr Bytes operator*(int64_t n) const { return Bytes(count_ * n); }
  constexpr Bytes& operator+=(Bytes o) { return count_ += o.count_, *this; }
  constexpr Bytes& operator-=(Bytes o) { return count_ -= o.count_, *this; }

  // The next multiple of `alignment` (a power of two).
  constexpr Bytes AlignUp(int64_t alignment) const {
    return Bytes((count_ + alignment - 1) & ~(alignment - 1));
  }

 private:
  int64_t count_ = 0;
};

constexpr Bytes KiB(int64_t n) { return Bytes(n << 10); }
constexpr Bytes MiB(int64_t n) { return Bytes(n << 20); }
constexpr Bytes GiB(int64_t n) { return Bytes(n << 30); }

// All device and arena slots start on such a boundary, and so does each tensor in a block: whole
// cache lines, and what cuBLASLt needs of its operands to give the same bits at any address.
inline constexpr int64_t kSlotAlignment = 256;

// A duration, or a point on some clock, in nanoseconds.
class Nanos {
 public:
  constexpr Nanos() = default;
  constexpr explicit Nanos(int64_t count) : count_(count) {}
  // Saturates at a million seconds either way, which is also what NaN gives: an absurdly slow
  // device must not come out as a fast one.
  static constexpr Nanos FromSeconds(double s) {
    constexpr double kMost = 1e6;
    const double bounded = s < kMost ? (s > -kMost ? s : -kMost) : kMost;
    return Nanos(static_cast<int64_t>(bounded * 1e9 + 0.5));
  }
  constexpr int64_t count() const { return count_; }
  constexpr double seconds() const { return static_cast<double>(count_) * 1e-9; }

  constexpr auto operator<=>(const Nanos&) const = default;
  constexpr Nanos operator+(Nanos o) const { return Nanos(count_ + o.count_); }
  constexpr Nanos operator-(Nanos o) const { return Nanos(count_ - o.count_); }
  constexpr Nanos operator*(int64_t n) const { return Nanos(count_ * n); }
  constexpr Nanos& operator+=(Nanos o) { return count_ += o.count_, *this; }

 private:
  int64_t count_ = 0;
};

constexpr Nanos Millis(int64_t n) { return Nanos(n * 1'000'000); }
constexpr Nanos Seconds(int64_t n) { return Nanos(n * 1'000'000'000); }

// A rate; 0 means "not modelled" (as fast as it goes).
struct BytesPerSecond {
  double value = 0;
  auto operator<=>(const BytesPerSecond&) const = default;
};
struct FlopsPerSecond {
  double value = 0;
  auto operator<=>(const FlopsPerSecond&) const = default;
};

// "256MiB", "1.5GB", "4096". Binary and decimal suffixes; InvalidArgument says what was read.
absl::StatusOr<Bytes> ParseBytes(absl::string_view text);
// "1GB/s", "800MiB/s".
absl::StatusOr<BytesPerSecond> ParseBytesPerSecond(absl::string_view text);
// "20G", "1.5T" (floating-point operations per second).
absl::StatusOr<FlopsPerSecond> ParseFlops(absl::string_view text);

// "1.50 GiB (1610612736 B)" is for errors, "1.50 GiB" for tables.
std::string FormatBytes(Bytes bytes);
std::string FormatBytesExact(Bytes bytes);
std::string FormatDuration(Nanos nanos);

}  // namespace harmony
