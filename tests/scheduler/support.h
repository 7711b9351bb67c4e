#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "scheduler/schedule.h"

namespace headrace::scheduler::test {

/// A trace with its objects and everything compile() needs; movable, the input points into it.
struct Case {
  Trace trace;
  std::vector<ObjectFacts> objects;
  Budgets budgets;
  Rates rates;
  std::vector<Residency> initial;

  ObjectId add(std::string name, int64_t size, Tier floor, std::optional<Tier> home = std::nullopt);
  Operation& run(std::string name, Lane lane, double seconds, std::vector<Use> uses);
  /// Packs the home slots at the low end, in order of the object table.
  void place_homes();
  /// The smallest budgets plus the given bytes.
  void set_budgets(bool has_device, int64_t extra_device, int64_t extra_host);
  CompileInput input() const;
};

inline Use reads(ObjectId object, Tier tier = Tier::device) {
  return {object, tier, Access::read, false};
}
inline Use last_reads(ObjectId object, Tier tier = Tier::device) {
  return {object, tier, Access::read, true};
}
inline Use writes(ObjectId object, Tier tier = Tier::device) {
  return {object, tier, Access::write, false};
}
inline Use updates(ObjectId object, Tier tier = Tier::device) {
  return {object, tier, Access::update, false};
}

/// The case as text, for messages.
std::string describe(const Case& test_case);

/// Small random trace with objects of all kinds; valid by construction.
Case random_case(Random& random);

/// Executes the actions in a random order that respects the dependencies, on arenas that hold
/// values, and compares what every operation reads, and the final homes, with the sequential
/// execution without limits. Returns what differs first; empty when nothing does.
std::string replay_values(const Case& test_case, const Schedule& schedule, Random& random);

/// Compiles, checks with check_schedule (reported as test failures), and carries the final
/// residency over to the next round.
struct Rounds {
  Schedule last;
  double seconds = 0;  ///< simulated, of the last round
  double bound = 0;
  Lane bound_lane = Lane::compute;
};
Rounds run_rounds(Case test_case, const Policy& policy, int rounds);

/// Violations of the schedule, one per line.
std::string violations(const CompileInput& input, const Schedule& schedule);

}  // namespace headrace::scheduler::test
