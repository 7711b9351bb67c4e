#pragma once

#include <vector>

#include "scheduler/boundary_bound.h"

namespace headrace::scheduler {

/// Which copies to keep between their uses so that fewest bytes move: the solution of the lower
/// bound's relaxation over two rounds of the trace (the second stands for the future), read back
/// for the first. Whole objects in real arenas can follow it only in part.
class KeepPlan {
 public:
  explicit KeepPlan(const CompileInput& input);

  /// False where the trace is too long for the relaxation.
  bool is_complete() const { return complete_; }
  /// Share of the object that stays in the tier after its first `uses_over` uses until the next
  /// one that needs it, in [0, 1].
  float share(ObjectId object, uint32_t uses_over, Tier tier) const {
    const auto& shares = tier == Tier::device ? on_device_ : above_nvme_;
    return shares[first_[index_of(object)] + uses_over];
  }

 private:
  void read_back(const BoundaryBound& boundary, std::vector<float>& shares);

  std::vector<std::vector<uint32_t>> positions_;  ///< by object: the operations that use it
  std::vector<uint32_t> first_;                   ///< by object, in the shares
  std::vector<float> on_device_;
  std::vector<float> above_nvme_;
  bool complete_ = true;
};

}  // namespace headrace::scheduler
