#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// What the operations of a trace need of a tier, whatever the policy. Bytes throughout; arrays are
/// indexed by tier (device, host).
///
/// An arena is laid out from its low end: the home slots, packed by the caller; then the anchored
/// slots of objects that live inside the trace and may not sink to nvme, placed here once for their
/// lifetime; the rest is for floating copies. An operation fits when
///     homes + anchored_top[operation] + max(floating[operation], transit[operation]) <= budget
/// where transit is the largest floating object that passes the host on its way to or from the
/// device; one at a time does.
struct Footprint {
  std::array<int64_t, 2> homes{};
  std::vector<int64_t> anchor_offset;  ///< by object, above the homes; -1 where it has none
  std::array<std::vector<int64_t>, 2> anchored_top;  ///< by operation
  std::array<std::vector<int64_t>, 2> floating;      ///< by operation
  std::array<std::vector<int64_t>, 2> transit;       ///< by operation; zero on the device
  int64_t largest_transit = 0;
  int64_t end_in_host = 0;  ///< needed when the trace has ended, for the last write-backs
  /// Objects whose anchored slot is taken at an operation, and given back after it.
  std::vector<std::vector<ObjectId>> anchored_from;
  std::vector<std::vector<ObjectId>> anchored_until;

  /// Bytes needed by one operation above the home slots.
  int64_t above_homes(Tier tier, size_t operation) const;
  /// The smallest budget of a tier, and the operation that asks for it (the number of operations
  /// when none does).
  struct Peak {
    int64_t bytes = 0;
    size_t operation = 0;
  };
  Peak peak(Tier tier) const;
};

/// The trace must be valid (check_trace). In the middle of a step anchored slots are where they
/// are; an object that has none there yet gets one at the first operation.
Footprint measure_footprint(const CompileInput& input);

}  // namespace headrace::scheduler
