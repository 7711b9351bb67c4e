#pragma once

#include <algorithm>
#include <chrono>

#include "base/units.h"

namespace headrace {

/// A serial channel of a known rate as virtual time: what arrives is served in order of arrival,
/// one after the other. Ends depend on sizes and arrivals only, so that errors of clocks and sleeps
/// do not add up. Not thread-safe.
class RateLane {
 public:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    Clock::time_point begin;
    Clock::time_point end;
  };

  /// 0: no limit.
  explicit RateLane(double bytes_per_second = 0) : bytes_per_second_(bytes_per_second) {}

  bool is_limited() const { return bytes_per_second_ > 0; }

  Slot admit(Clock::time_point arrival, Bytes size) {
    return is_limited() ? admit_for(arrival, static_cast<double>(size.count()) / bytes_per_second_)
                        : Slot{arrival, arrival};
  }
  /// Work that takes this long whatever the rate.
  Slot admit_for(Clock::time_point arrival, double seconds) {
    const Clock::time_point begin = std::max(arrival, free_);
    free_ =
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    return {begin, free_};
  }

 private:
  double bytes_per_second_;
  Clock::time_point free_{};
};

}  // namespace headrace
