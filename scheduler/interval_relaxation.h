#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace headrace::scheduler {

/// Bytes that would like to stay in a memory over the positions [first, last]; any part of them can
/// be let go, at `cost` per byte.
struct StayInterval {
  int64_t first = 0;
  int64_t last = 0;
  int64_t bytes = 0;
  int64_t cost = 1;  ///< > 0
};

/// Fewest bytes to let go so that at every position the rest fits into `room` (bytes by position,
/// negative counts as zero), for intervals of equal cost per byte. Exact: at the first position
/// that overflows, letting go what stays longest leaves the most room for the rest.
int64_t fewest_bytes_let_go(std::vector<StayInterval> intervals, const std::vector<int64_t>& room);

/// What to let go at least cost.
struct LetGo {
  int64_t cost = 0;
  std::vector<int64_t> bytes;  ///< by interval
};

/// Least cost for intervals of any cost: a minimum-cost flow along the line of positions, so the
/// optimum of the fractional problem is a whole number of bytes. Exact. Empty when the search
/// exceeds `most_steps` arc visits.
std::optional<LetGo> least_cost_let_go(const std::vector<StayInterval>& intervals,
                                       const std::vector<int64_t>& room, int64_t most_steps);

}  // namespace headrace::scheduler
