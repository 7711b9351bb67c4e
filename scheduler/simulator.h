#pragma once

#include <vector>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// Start and end of every action (drop and place included), by action index, seconds.
struct ActionTimes {
  std::vector<double> begin;
  std::vector<double> end;
};

/// The event simulation behind simulate(). `actions` must depend only on earlier ones.
ActionTimes simulate_actions(const CompileInput& input, const std::vector<Action>& actions);

/// Sorts the actions by their simulated start and renumbers their dependencies, so that a runtime
/// that serves each lane strictly in order of the list overlaps as much as the simulation does.
/// The order stays topological: no action starts before those it depends on.
std::vector<Action> order_by_start(const CompileInput& input, std::vector<Action> actions);

}  // namespace headrace::scheduler
