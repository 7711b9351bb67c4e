#pragma once

#include <array>
#include <optional>
#include <vector>

#include "scheduler/footprint.h"
#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// A schedule made in arenas without addresses (BytePool): its actions in the order in which they
/// were decided, the offsets of slots being only names.
struct UnplacedSchedule {
  Schedule schedule;
  std::vector<double> ends;  ///< by action, seconds in the estimate of the walk
};

/// Addresses for the copies of an unplaced schedule, chosen with the whole schedule in view: each
/// copy lies in its slot from its first filling to its last use, what stays longer for nothing is
/// left out. Some copies may find no place. docs/scheduler.md, "Places".
class SlotPlan {
 public:
  SlotPlan(const CompileInput& input, const Footprint& footprint, const UnplacedSchedule& unplaced);

  /// First byte of the slot that the object takes in the tier on behalf of the operation at
  /// `position` (the number of operations: after the last one).
  std::optional<int64_t> offset_of(ObjectId object, Tier tier, uint32_t position) const;

 private:
  struct Place {
    uint32_t object = 0;
    uint32_t position = 0;
    int64_t offset = 0;
  };

  std::array<std::vector<Place>, 2> places_;  ///< by tier, in order of object and position
};

}  // namespace headrace::scheduler
