#pragma once

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// What no schedule of a trace can beat that allows its operations in the order of the trace, from
/// the given initial residency, within the given budgets and with every persistent object at home
/// in the end. Independent of policies; docs/scheduler.md, "Lower bound".
struct LowerBound {
  Bytes nvme_read;  ///< fewest bytes over each boundary, each direction on its own
  Bytes nvme_write;
  Bytes host_to_device;
  Bytes device_to_host;
  Bytes nvme;  ///< fewest bytes in the sum of both directions; not less than their sum
  Bytes link;  ///< the same between device and host
  /// Fewest seconds of the step as simulate() counts them.
  double seconds = 0;
  /// What binds: the lane, or none where it is a chain of dependent work over several.
  double lane_seconds[kLaneCount] = {};  ///< least busy time by lane
  double chain_seconds = 0;              ///< longest chain of dependent work
};

/// Whether the device may hold objects that no operation of the trace uses there. compile() never
/// puts them there.
enum class Parking : uint8_t { allowed, never };

/// Throws InputError and CapacityError as compile() does.
LowerBound lower_bound(const CompileInput& input, Parking parking = Parking::allowed);

}  // namespace headrace::scheduler
