#pragma once

#include <vector>

#include "scheduler/boundary_bound.h"

namespace headrace::scheduler {

/// Which copies to keep between their uses so that fewest bytes move: the solution of the lower
/// bound's relaxation over two rounds of the trace (the second stands for the future), read back
/// for the first. Whole objects in real arenas can follow it only in part.
class KeepPlan {
 public:
  static constexpr int64_t kFewSteps = 20'000'000;
  /// `usable`: the part of the room that copies can use between uses; the rest goes to holes and to
  /// copies on their way. `most_steps`: work on each of the two relaxations, some 200 million a
  /// second.
  KeepPlan(const CompileInput& input, double usable, int64_t most_steps = kFewSteps);

  /// False where the trace is too long for the relaxation.
  bool is_complete() const { return complete_; }
  /// Share of the object that stays in the tier after its first `uses_over` uses until the next
  /// one that needs it, in [0, 1].
  float share(ObjectId object, uint32_t uses_over, Tier tier) const {
    const auto& shares = tier == Tier::device ? on_device_ : in_host_;
    return shares[first_[index_of(object)] + uses_over];
  }

 private:
  void solve(const std::vector<Stay>& stays, std::vector<int64_t> room, int64_t most_steps,
             std::vector<float>& shares);
  template <class Visit>
  void for_each_share(const Stay& stay, const Visit& visit) const;

  std::vector<std::vector<uint32_t>> positions_;  ///< by object: the operations that use it
  std::vector<uint32_t> first_;                   ///< by object, in the shares
  std::vector<float> on_device_;
  std::vector<float> in_host_;
  double usable_ = 1;
  bool complete_ = true;
};

}  // namespace headrace::scheduler
