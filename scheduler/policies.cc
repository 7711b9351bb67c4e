#include <array>

#include "scheduler/compiler.h"
#include "scheduler/victim_model.h"

namespace headrace::scheduler {

namespace {

/// Whether reuse or early fetches pay more depends on which lane binds when, which only the whole
/// schedule shows: the plans are made and simulated. From pure reuse to mostly early fetches.
constexpr std::array<FarthestUseWeights, 4> kWeights = {{{1, 0}, {1, 0.3}, {0.3, 0.3}, {0.1, 1}}};
/// Longer traces get the first plan only; their compilation has to stay below a second.
constexpr size_t kMaxOperationsToCompare = 2000;
/// Among plans that are this close in time the one that moves fewer bytes is better.
constexpr double kSameTime = 1.005;

struct Candidate {
  Schedule schedule;
  double seconds = 0;
  int64_t nvme_bytes = 0;
};

Candidate try_model(const CompileInput& input, const VictimModel& model) {
  Candidate result;
  result.schedule = compile_with(input, model);
  result.seconds = simulate(input, result.schedule).seconds;
  result.nvme_bytes = (result.schedule.nvme_read + result.schedule.nvme_write).count();
  return result;
}

bool is_better(const Candidate& a, const Candidate& b) {
  if (a.seconds * kSameTime < b.seconds) {
    return true;
  }
  return a.seconds < b.seconds * kSameTime && a.nvme_bytes < b.nvme_bytes;
}

class OptimalPolicy final : public Policy {
 public:
  std::string_view name() const override { return "optimal"; }
  Schedule compile(const CompileInput& input) const override {
    Candidate best;
    best.schedule = compile_with(input, FarthestUse(input, kWeights[0]));
    if (input.trace->operations.size() > kMaxOperationsToCompare) {
      return std::move(best.schedule);
    }
    best.seconds = simulate(input, best.schedule).seconds;
    best.nvme_bytes = (best.schedule.nvme_read + best.schedule.nvme_write).count();
    const auto consider = [&](Candidate other) {
      if (is_better(other, best)) {
        best = std::move(other);
      }
    };
    for (size_t i = 1; i < kWeights.size(); ++i) {
      consider(try_model(input, FarthestUse(input, kWeights[i])));
    }
    consider(try_model(input, LeastRecentlyUsed()));
    return std::move(best.schedule);
  }
};

class LruPolicy final : public Policy {
 public:
  std::string_view name() const override { return "lru"; }
  Schedule compile(const CompileInput& input) const override {
    return compile_with(input, LeastRecentlyUsed());
  }
};

}  // namespace

std::unique_ptr<Policy> make_optimal_policy() {
  return std::make_unique<OptimalPolicy>();
}
std::unique_ptr<Policy> make_lru_policy() {
  return std::make_unique<LruPolicy>();
}

}  // namespace headrace::scheduler
