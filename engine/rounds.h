#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/run_plan.h"
#include "scheduler/saved_trace.h"

namespace headrace::engine {

/// The schedules of a run's steps, one after another, each compiled from what the one before leaves
/// in memory; the first from what the load of the weights leaves. Refers to the plan. Not
/// thread-safe.
class Rounds {
 public:
  Rounds(const MemoryPlan& plan, const EngineOptions& options);

  scheduler::SavedRound compile(const StepTrace& trace);
  /// A speculative step and, from its middle, the redo of its updates.
  scheduler::SavedRound compile_redo();

  /// What the next schedule starts from.
  const std::vector<scheduler::Residency>& residency() const { return residency_; }
  std::string_view policy() const { return policy_->name(); }

 private:
  const MemoryPlan& plan_;
  scheduler::Rates rates_;
  std::unique_ptr<scheduler::Policy> policy_;
  std::vector<scheduler::Residency> residency_;
};

}  // namespace headrace::engine
