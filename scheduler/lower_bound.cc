#include "scheduler/lower_bound.h"

#include <algorithm>

#include "base/check.h"
#include "scheduler/boundary_bound.h"
#include "scheduler/input_check.h"
#include "scheduler/time_bound.h"

namespace headrace::scheduler {

LowerBound lower_bound(const CompileInput& input, Parking parking) {
  HR_CHECK(input.trace != nullptr && input.objects != nullptr, "trace and objects must be given");
  check_trace(*input.trace, *input.objects, input.budgets.alignment, input.initial);
  const Footprint footprint = measure_footprint(input);
  check_capacity(input, footprint);
  check_initial(input, footprint);
  const std::vector<ValueLife> lives = value_lives(input);
  const BoundaryBound link(input, lives, Boundary::link);
  BoundaryBound drive(input, lives, Boundary::drive);
  const CrossingBound over_link = link.whole_trace();
  CrossingBound over_drive = drive.whole_trace();
  if (parking == Parking::never) {
    drive.confine_to_host();
    const CrossingBound confined = drive.whole_trace();
    over_drive.up = std::max(over_drive.up, confined.up);
    over_drive.down = std::max(over_drive.down, confined.down);
    over_drive.both = std::max({over_drive.both, confined.both, over_drive.up + over_drive.down});
  }
  LowerBound bound;
  bound.nvme_read = Bytes(over_drive.up);
  bound.nvme_write = Bytes(over_drive.down);
  bound.nvme = Bytes(over_drive.both);
  bound.host_to_device = Bytes(over_link.up);
  bound.device_to_host = Bytes(over_link.down);
  bound.link = Bytes(over_link.both);
  bound_time(input, lives, link, drive, bound);
  return bound;
}

}  // namespace headrace::scheduler
