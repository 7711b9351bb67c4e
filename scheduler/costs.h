#pragma once

#include <optional>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// A transfer from nvme to the device that passes no host memory.
inline bool is_direct(Tier from, Tier to) {
  return from == Tier::nvme && to == Tier::device;
}

/// Lane of a transfer between two adjacent tiers, or of a direct read: the drive's.
Lane transfer_lane(Tier from, Tier to);

/// Bytes per second of a lane of transfers.
double rate_of(const Rates& rates, Lane lane);

/// Bytes per second of a direct read that has drive and link to itself.
double direct_rate(const Rates& rates);

/// Bytes per second of a transfer that has its lane to itself.
double transfer_rate(const Rates& rates, Tier from, Tier to);

/// Seconds from the last byte of a lane's transfer to its end; 0 for lanes of operations.
double latency_of(const Rates& rates, Lane lane);

/// What is left of the rate of each direction of the drive while both go on, 0 to 1.
double drive_share(const Rates& rates);

/// The rates of a drive both of whose directions are in use all the time: what planning counts on.
Rates under_load(Rates rates);

/// How long each direction of the drive is busy with what takes it so many seconds alone, where as
/// much as can be is moved in both at once. The greater is the least time in which both are done.
struct DriveSeconds {
  double reading = 0;
  double writing = 0;
};
DriveSeconds drive_seconds(const Rates& rates, const DriveSeconds& alone);

/// Parts of their rates that a direct read and a copy to the device have while both go on, which
/// take the link together: no more of it than there is, and half of it for the copy.
struct LinkShares {
  double direct = 1;
  double copy = 1;
};
/// `drive`: the part of its rate that the drive gives the direct read.
LinkShares link_shares(const Rates& rates, double drive);

/// Size over rate plus latency: what a transfer alone takes, in seconds.
double transfer_seconds(const Rates& rates, Bytes size, Tier from, Tier to);

/// The lane an action occupies; empty for drop and place, which cost nothing.
std::optional<Lane> lane_of(const CompileInput& input, const Action& action);

/// How long an action occupies its lane, in seconds; a transfer of the drive: with the other
/// direction idle.
double occupancy_of(const CompileInput& input, const Action& action);

}  // namespace headrace::scheduler
