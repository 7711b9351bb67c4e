#include "engine/recompute_choice.h"

#include <fmt/format.h>

#include <utility>

namespace headrace::engine {

using model::Recompute;

namespace {

/// Of the compute time that a plan saves: if the step is shorter by so much, no other is tried.
constexpr double kNearlyAll = 0.9;

RecomputeLevels last_blocks(int64_t layers, int64_t count, Recompute level) {
  RecomputeLevels levels(static_cast<size_t>(layers - count), Recompute::block);
  levels.resize(static_cast<size_t>(layers), level);
  return levels;
}

double operation_seconds(const MemoryPlan& plan) {
  double seconds = 0;
  for (const scheduler::Operation& operation : plan.training.trace.operations) {
    seconds += operation.seconds;
  }
  return seconds;
}

/// Plans for one level, and the best one so far of all.
class Search {
 public:
  Search(MemoryPlan plan, double seconds, const RecomputeTrials& trials)
      : trials_(trials),
        layers_(plan.layout.layers()),
        recomputing_seconds_(operation_seconds(plan)),
        first_seconds_(seconds),
        best_seconds_(seconds),
        best_(std::move(plan)) {}

  /// Whether nothing better can be expected of other levels.
  bool try_level(Recompute level) {
    auto [count, plan] = most_blocks(level);
    if (!plan) {
      return false;
    }
    double before = 0;
    for (int tries = 0; plan && tries < kTries; ++tries) {
      const double seconds = trials_.seconds(*plan);
      const double saved = recomputing_seconds_ - operation_seconds(*plan);
      const bool is_enough = first_seconds_ - seconds >= kNearlyAll * saved;
      const bool is_worse = tries > 0 && seconds >= before;
      before = seconds;
      if (seconds < kSavingIsFasterBy * best_seconds_) {
        best_seconds_ = seconds;
        best_ = std::move(*plan);
      }
      if (is_enough || is_worse || count == 1) {
        return is_enough && level == Recompute::none && count == layers_;
      }
      count /= 2;
      plan = trials_.plan_with(last_blocks(layers_, count, level));
    }
    return false;
  }

  MemoryPlan take() { return std::move(best_); }

 private:
  static constexpr int kTries = 3;

  /// The plan with the most blocks that fits; empty where not even one does.
  std::pair<int64_t, std::optional<MemoryPlan>> most_blocks(Recompute level) const {
    std::pair<int64_t, std::optional<MemoryPlan>> found;
    int64_t too_many = layers_ + 1;
    for (int64_t count = layers_; count > found.first; count = (found.first + too_many) / 2) {
      if (auto plan = trials_.plan_with(last_blocks(layers_, count, level))) {
        found = {count, std::move(plan)};
      } else {
        too_many = count;
      }
    }
    return found;
  }

  const RecomputeTrials& trials_;
  int64_t layers_;
  double recomputing_seconds_;  ///< of all operations where every block is computed again
  double first_seconds_;
  double best_seconds_;
  MemoryPlan best_;
};

}  // namespace

model::PerLevel<int64_t> count_levels(const RecomputeLevels& levels) {
  model::PerLevel<int64_t> counts;
  for (const Recompute level : levels) {
    ++counts[level];
  }
  return counts;
}

std::string describe(const RecomputeLevels& levels) {
  const model::PerLevel<int64_t> counts = count_levels(levels);
  return fmt::format("blocks computed again: {} whole, {} MLP, {} nothing",
                     counts[Recompute::block], counts[Recompute::mlp], counts[Recompute::none]);
}

MemoryPlan choose_recompute(MemoryPlan plan, double seconds, const RecomputeTrials& trials) {
  Search search(std::move(plan), seconds, trials);
  for (const Recompute level : {Recompute::none, Recompute::mlp}) {
    if (search.try_level(level)) {
      break;
    }
  }
  return search.take();
}

}  // namespace headrace::engine
