#include "scheduler/demand.h"

#include "base/check.h"
#include "scheduler/compiler.h"
#include "scheduler/victim_model.h"

namespace headrace::scheduler {

namespace {

/// As LeastRecentlyUsed, with one scale for both: what is known to be used again ranks above every
/// last use, the sooner the higher.
class FarthestKnownUse final : public VictimModel {
 public:
  FarthestKnownUse(const CompileInput& input, const std::vector<uint32_t>& next_use)
      : next_use_(next_use),
        above_last_uses_(
            static_cast<double>(1 + input.initial.size() + input.trace->operations.size())) {}

  VictimScore score(const CopyFacts& facts) const override {
    const uint32_t next = next_use_[index_of(facts.object)];
    VictimScore score;
    score.idle_from = next == NextUse::kNever
                          ? static_cast<double>(facts.last_use)
                          : above_last_uses_ + static_cast<double>(NextUse::kNever - next);
    return score;
  }
  StallModel stall(const StallModel& /*estimate*/) const override { return {}; }
  bool free_is_ready() const override { return true; }
  double now(uint32_t /*position*/) const override { return 0; }

 private:
  const std::vector<uint32_t>& next_use_;
  double above_last_uses_;
};

}  // namespace

Schedule compile_on_demand(const CompileInput& input, const std::vector<uint32_t>& next_use) {
  HR_CHECK(input.objects != nullptr && next_use.size() == input.objects->size(),
           "next uses of {} objects", next_use.size());
  HR_CHECK(input.trace != nullptr, "a trace must be given");
  return compile_with(input, FarthestKnownUse(input, next_use));
}

}  // namespace headrace::scheduler
