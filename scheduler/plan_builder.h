#pragma once

#include <array>
#include <vector>

#include "scheduler/dependencies.h"
#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// The list of actions under construction: gives each action its dependencies, keeps an estimate of
/// when it ends (lanes serve in list order), and counts bytes and arena peaks.
/// Times are seconds from the start of the trace.
class PlanBuilder {
 public:
  explicit PlanBuilder(const CompileInput& input);

  /// Copies the object; `new_slot` when its slot in an arena was free before, and then not before
  /// `ready`.
  void transfer(ObjectId object, Tier from, Tier to, int64_t offset, bool new_slot, double ready);
  /// Forgets a copy; in an arena its slot at `offset` becomes free. Returns from when on.
  double drop(ObjectId object, Tier tier, int64_t offset);
  void place(ObjectId object, Tier tier, int64_t offset, double ready);
  void operation(uint32_t index);

  double lane_free(Lane lane) const { return lane_free_[static_cast<size_t>(lane)]; }
  /// When all actions so far on a copy have ended.
  double idle_from(ObjectId object, Tier tier) const {
    return idle_from_[index_of(object)][static_cast<size_t>(tier)];
  }

  /// A slot that is occupied from the start.
  void note_slot(ObjectId object, Tier tier, int64_t offset);
  /// The finished schedule, without its residencies, in the order in which it was built.
  Schedule finish();
  /// When each action ends in the estimate.
  std::vector<double> take_ends() { return std::move(ends_); }

 private:
  double append(Action action, double ready = 0);
  void touched(ObjectId object, Tier tier, double end);
  void count_bytes(ObjectId object, Tier from, Tier to);
  int64_t slot_end(ObjectId object, int64_t offset) const;

  const CompileInput& input_;
  DependencyTracker dependencies_;
  Schedule schedule_;
  std::vector<double> ends_;
  std::array<double, kLaneCount> lane_free_{};
  std::vector<std::array<double, kTierCount>> idle_from_;
};

}  // namespace headrace::scheduler
