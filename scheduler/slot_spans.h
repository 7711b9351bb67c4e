#pragma once

#include <array>
#include <vector>

#include "scheduler/slot_plan.h"

namespace headrace::scheduler {

/// One copy of an object in an arena, as long as it is needed.
struct SlotSpan {
  ObjectId object{};
  uint32_t position = 0;  ///< operation on whose behalf the slot is taken
  int64_t size = 0;
  int64_t first = 0;    ///< action that fills it; -1: it is there from the start
  int64_t last = 0;     ///< last action that needs it; kForGood: it is kept for the next round
  double begin = 0;     ///< from when it could be filled, seconds
  double end = 0;       ///< when its last use is over
  int64_t offset = -1;  ///< where it lies; -1: nowhere yet

  static constexpr int64_t kForGood = INT64_MAX;
};

/// The copies of an unplaced schedule by tier (device, host), without home slots. Those that are
/// there from the start and those with an anchored slot have their offsets.
std::array<std::vector<SlotSpan>, 2> slot_spans(const CompileInput& input,
                                                const Footprint& footprint,
                                                const UnplacedSchedule& unplaced);

}  // namespace headrace::scheduler
