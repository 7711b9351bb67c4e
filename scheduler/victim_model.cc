#include "scheduler/victim_model.h"

#include <algorithm>

#include "scheduler/costs.h"
#include "scheduler/placement.h"

namespace headrace::scheduler {

namespace {

/// Part of its worth that a host copy keeps while a device copy is expected to serve its next use.
constexpr double kShadowedWorth = 0.125;
/// Part of its worth that a copy keeps that the plan lets go.
constexpr double kLetGoWorth = 0.05;

}  // namespace

FarthestUse::FarthestUse(const CompileInput& input, const FarthestUseWeights& weights)
    : weights_(weights), pace_{0}, device_bytes_{0} {
  const Rates rates = under_load(input.rates);
  for (const Operation& operation : input.trace->operations) {
    double on_device = 0;
    double on_host = 0;
    for (const Use& use : operation.uses) {
      const ObjectFacts& facts = (*input.objects)[index_of(use.object)];
      (use.tier == Tier::device ? on_device : on_host) += static_cast<double>(facts.size.count());
    }
    const double moving = std::max(on_device / rates.host_to_device, on_host / rates.nvme_read);
    pace_.push_back(pace_.back() + std::max(operation.seconds, moving));
    device_bytes_.push_back(device_bytes_.back() + on_device);
  }
  device_capacity_ = static_cast<double>(input.budgets.device.count());
  for (const ObjectFacts& facts : *input.objects) {
    if (has_home_in(facts, Tier::device)) {
      device_capacity_ -= static_cast<double>(slot_bytes(facts, input.budgets.alignment));
    }
  }
}

double FarthestUse::at(const std::vector<double>& sums, uint32_t position) {
  const auto round = static_cast<uint32_t>(sums.size()) - 1;
  return position < round ? sums[position] : sums.back() + sums[position - round];
}

bool FarthestUse::stays_on_device(const CopyFacts& facts) const {
  return at(device_bytes_, facts.next_use) - device_bytes_[facts.position] <= device_capacity_;
}

VictimScore FarthestUse::score(const CopyFacts& facts) const {
  VictimScore score;
  score.idle_from = facts.idle_from;
  score.flush_seconds = facts.flush_seconds;
  if (facts.next_use == NextUse::kNever || pace_.back() <= 0) {
    return score;
  }
  double worth = facts.refetch_seconds + (facts.flush_is_due ? 0 : facts.flush_seconds);
  if (facts.in_host && stays_on_device(facts)) {
    worth *= kShadowedWorth;
  }
  worth *= weights_.keep;
  // worth * (1 - (next use - now) / round)
  score.keep_slope = worth / pace_.back();
  score.keep_base = worth - score.keep_slope * at(pace_, facts.next_use);
  return score;
}

StallModel FarthestUse::stall(const StallModel& estimate) const {
  StallModel stall = estimate;
  if (pace_.back() > 0) {
    stall.lateness = weights_.lateness * estimate.transfer_seconds / pace_.back();
  }
  return stall;
}

VictimScore PlannedUse::score(const CopyFacts& facts) const {
  VictimScore score = farthest_use_.score(facts);
  if (score.keep_slope == 0 && score.keep_base == 0) {
    return score;
  }
  const double share = static_cast<double>(plan_.share(facts.object, facts.uses_over, facts.tier));
  double worth = kLetGoWorth + (1 - kLetGoWorth) * share;
  if (facts.tier == Tier::host && facts.in_host) {
    // The device copy serves the next use where it stays.
    worth *= 1 - (1 - kLetGoWorth) *
                     static_cast<double>(plan_.share(facts.object, facts.uses_over, Tier::device));
  }
  const double undiscounted = score.keep_slope * farthest_use_.round();
  const double trusted = trust_ == PlanTrust::in_full ? share : 0;
  score.keep_base = worth * (trusted * undiscounted + (1 - trusted) * score.keep_base);
  score.keep_slope *= worth * (1 - trusted);
  return score;
}

VictimScore LeastRecentlyUsed::score(const CopyFacts& facts) const {
  VictimScore score;
  score.idle_from = static_cast<double>(facts.last_use);
  return score;
}

}  // namespace headrace::scheduler
