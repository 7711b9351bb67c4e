#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "scheduler/compiler.h"

namespace headrace::scheduler {

/// The stage3_ limits of a DeepSpeed configuration, in elements of full parameters, with its
/// defaults.
struct LivenessLimits {
  Elements max_live_parameters{1'000'000'000};  ///< bounds prefetches, nothing else
  Elements max_reuse_distance{1'000'000'000};   ///< a parameter met again before that stays
  Elements prefetch_bucket{50'000'000};         ///< prefetched per module; 0: none
  Elements persistence_threshold{100'000};      ///< parameters up to this size stay
  /// Most elements that stay because of their size.
  Elements model_persistence_threshold{std::numeric_limits<int64_t>::max()};
};

/// What the limits mean for a trace.
struct LivenessPlan {
  std::vector<OperationGuide> operations;  ///< by operation, and one for the end of the trace
  std::vector<ObjectId> persistent;
};

/// A module is an operation of the compute lane that uses parameters; the parameters of a module
/// are taken in order of their ids; passes begin where Operation::starts_pass says. `parameters`:
/// elements by ObjectId, 0 for what is no parameter. docs/scheduler.md, "Liveness".
LivenessPlan plan_liveness(const CompileInput& input, const std::vector<Elements>& parameters,
                           const LivenessLimits& limits);

/// Parameters come and go as DeepSpeed's ZeRO-3 moves them, under hard byte budgets: where it would
/// exceed one, the least recently used copy is evicted. Everything else is least recently used.
std::unique_ptr<Policy> make_liveness_policy(const LivenessLimits& limits,
                                             std::vector<Elements> parameters);

}  // namespace headrace::scheduler
