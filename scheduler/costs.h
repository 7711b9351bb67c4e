#pragma once

#include <optional>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// Lane of a transfer between two adjacent tiers.
Lane transfer_lane(Tier from, Tier to);

/// Bytes per second of a lane of transfers.
double rate_of(const Rates& rates, Lane lane);

/// Seconds from the last byte of a lane's transfer to its end; 0 for lanes of operations.
double latency_of(const Rates& rates, Lane lane);

/// Size over rate plus latency: what a transfer alone takes, in seconds.
double transfer_seconds(const Rates& rates, Bytes size, Tier from, Tier to);

/// The lane an action occupies; empty for drop and place, which cost nothing.
std::optional<Lane> lane_of(const CompileInput& input, const Action& action);

/// How long an action occupies its lane, in seconds.
double occupancy_of(const CompileInput& input, const Action& action);

}  // namespace headrace::scheduler
