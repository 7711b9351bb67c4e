#pragma once

#include <optional>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// Lane of a transfer between two adjacent tiers.
Lane transfer_lane(Tier from, Tier to);

/// Latency plus size over rate, in seconds.
double transfer_seconds(const Rates& rates, Bytes size, Tier from, Tier to);

/// The lane an action occupies; empty for drop and place, which cost nothing.
std::optional<Lane> lane_of(const CompileInput& input, const Action& action);

/// How long an action occupies its lane.
double seconds_of(const CompileInput& input, const Action& action);

}  // namespace headrace::scheduler
