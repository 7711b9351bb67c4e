#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "aio/io.h"
#include "base/units.h"

namespace headrace::aio {

/// The two directions of a drive of known rates as virtual time. Each serves what arrives in order
/// of arrival, one after the other; while both have something to serve, each is slowed by the same
/// factor so that they stay within the limit of both together. Ends depend on sizes and arrivals
/// only, not on when they are asked for. Not thread-safe.
class DriveLanes {
 public:
  using Clock = std::chrono::steady_clock;
  struct End {
    uint32_t token = 0;
    Clock::time_point time;
  };

  explicit DriveLanes(const IoLimits& limits);

  /// Arrivals come in the order of their times.
  void admit(IoOperation operation, uint32_t token, Bytes size, Clock::time_point now);
  /// What has been served by now, since the last call; in order of time.
  std::vector<End> take_served(Clock::time_point now);
  /// When the next one is served if nothing else arrives; max() where nothing waits.
  Clock::time_point next_end() const;
  /// Seconds in which a direction serves so many bytes if all stays as it is now.
  double seconds_for(IoOperation operation, double bytes) const;
  /// Bytes of a direction that have arrived and are not served yet.
  double bytes_waiting(IoOperation operation) const;

 private:
  struct Item {
    uint32_t token = 0;
    double bytes = 0;  ///< left to serve
  };
  struct Lane {
    double bytes_per_second = 0;  ///< alone; infinite: no limit
    double bytes = 0;             ///< of all items
    std::deque<Item> items;
  };

  double rate(const Lane& lane) const;
  void serve_until(Clock::time_point until);
  void end_first(Lane& lane);

  std::array<Lane, 2> lanes_;  ///< by operation
  double share_ = 1;           ///< of each rate while both serve
  Clock::time_point start_{};
  double seconds_ = 0;  ///< since start_: served until then
  std::vector<End> served_;
};

}  // namespace headrace::aio
