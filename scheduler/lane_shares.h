#pragma once

#include <array>
#include <vector>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// Busy time of each lane over the slice's length, 0 to 1, by Lane.
using LaneShares = std::array<double, kLaneCount>;

/// How busy the lanes are over a time line that is cut in `slices` (> 0) equal parts. A transfer
/// counts while its bytes occupy the lane, not during the latency after them.
std::vector<LaneShares> lane_shares(const CompileInput& input, const Timeline& timeline,
                                    int slices);

}  // namespace headrace::scheduler
