#pragma once

#include "scheduler/memory.h"

namespace headrace::scheduler {

/// What a policy moves around one operation beside what the operation needs.
struct OperationGuide {
  /// Come to their tier while the operation runs, unless that would displace one of `live`.
  std::vector<ObjectId> prefetch;
  Tier prefetch_tier = Tier::device;
  std::vector<ObjectId> live;     ///< sorted
  std::vector<ObjectId> release;  ///< their copies above the home go when the operation has ended
};

/// Checks the input, walks the trace and makes the schedule; the model chooses the victims.
/// `guides`: by operation, one more for the end of the trace; null for none.
Schedule compile_with(const CompileInput& input, const VictimModel& model,
                      const std::vector<OperationGuide>* guides = nullptr);

/// The same walk in arenas without addresses.
UnplacedSchedule compile_unplaced(const CompileInput& input, const VictimModel& model);
/// The walk that takes slots where an unplaced schedule of the same model would best have them, as
/// far as they are found and not in use there.
Schedule compile_placed(const CompileInput& input, const VictimModel& model,
                        const UnplacedSchedule& unplaced);

}  // namespace headrace::scheduler
