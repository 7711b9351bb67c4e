#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/arena.h"
#include "scheduler/keep_plan.h"
#include "scheduler/next_use.h"
#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// Facts about one evictable copy from which a policy makes its score. Seconds throughout.
struct CopyFacts {
  ObjectId object{};
  Tier tier = Tier::device;
  uint32_t uses_over = 0;               ///< uses of the object before now
  uint32_t next_use = NextUse::kNever;  ///< position, or kNever
  uint32_t position = 0;                ///< of the current operation
  int64_t last_use = 0;                 ///< grows with recency
  double idle_from = 0;
  double refetch_seconds = 0;  ///< to bring it back once it is gone
  double flush_seconds = 0;    ///< to move it away first; zero unless it is the only copy
  bool flush_is_due = false;   ///< that move has to happen in any case, now or later
  bool in_host = false;        ///< a host copy of an object that has a device copy as well
};

/// How a policy values copies; the rest of compile() is common to all policies.
class VictimModel {
 public:
  virtual ~VictimModel() = default;
  virtual VictimScore score(const CopyFacts& facts) const = 0;
  /// The stall as this policy sees it.
  virtual StallModel stall(const StallModel& estimate) const = 0;
  /// Whether free bytes are preferred whenever they come free: for scores that are no times.
  virtual bool free_is_ready() const { return false; }
  /// The trace position in the units of the scores.
  virtual double now(uint32_t position) const = 0;
};

/// What FarthestUse weighs against each other, as factors of the transfer times involved.
struct FarthestUseWeights {
  double keep = 1;      ///< bringing victims back
  double lateness = 0;  ///< each second by which the fetch could start earlier, per round
};

/// Farthest next use, weighed with the cost of coming back and against the stall of the transfer
/// that waits for the slot: docs/scheduler.md, "Victims".
class FarthestUse final : public VictimModel {
 public:
  FarthestUse(const CompileInput& input, const FarthestUseWeights& weights);
  VictimScore score(const CopyFacts& facts) const override;
  StallModel stall(const StallModel& estimate) const override;
  double now(uint32_t position) const override { return pace_[position]; }
  /// Length of the trace, in the same units.
  double round() const { return pace_.back(); }

 private:
  /// A running sum over the operations, continued into the next round.
  static double at(const std::vector<double>& sums, uint32_t position);
  bool stays_on_device(const CopyFacts& facts) const;

  FarthestUseWeights weights_;
  std::vector<double> pace_;  ///< seconds before each operation; the last entry is the round
  std::vector<double> device_bytes_;  ///< bytes used on the device before each operation
  double device_capacity_ = 0;        ///< for floating copies
};

/// What the distance of the next use means for a copy that a plan keeps.
enum class PlanTrust : uint8_t {
  by_distance,  ///< worth less the farther it is, as for all copies
  in_full,      ///< worth what bringing it back costs until then
};

/// FarthestUse that follows a plan: what it lets go is worth little, what it keeps in full.
class PlannedUse final : public VictimModel {
 public:
  PlannedUse(const CompileInput& input, const KeepPlan& plan, const FarthestUseWeights& weights,
             PlanTrust trust)
      : farthest_use_(input, weights), plan_(plan), trust_(trust) {}
  VictimScore score(const CopyFacts& facts) const override;
  StallModel stall(const StallModel& estimate) const override {
    return farthest_use_.stall(estimate);
  }
  double now(uint32_t position) const override { return farthest_use_.now(position); }

 private:
  FarthestUse farthest_use_;
  const KeepPlan& plan_;
  PlanTrust trust_;
};

/// Least recently used: the window whose most recently used copy is the oldest.
class LeastRecentlyUsed final : public VictimModel {
 public:
  VictimScore score(const CopyFacts& facts) const override;
  /// With these zeros the stall of a window is the last use of its latest copy.
  StallModel stall(const StallModel& /*estimate*/) const override { return {}; }
  bool free_is_ready() const override { return true; }
  double now(uint32_t /*position*/) const override { return 0; }
};

}  // namespace headrace::scheduler
