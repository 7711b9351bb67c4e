#pragma once

#include <utility>
#include <vector>

#include "base/random.h"
#include "scheduler/schedule.h"

namespace headrace::scheduler::test {

/// The actions of a schedule in a random order that respects their dependencies.
class ReadyActions {
 public:
  explicit ReadyActions(const std::vector<Action>& actions)
      : waiting_(actions.size()), dependents_(actions.size()) {
    for (uint32_t i = 0; i < actions.size(); ++i) {
      waiting_[i] = actions[i].after.size();
      for (const uint32_t before : actions[i].after) {
        dependents_[before].push_back(i);
      }
      if (waiting_[i] == 0) {
        ready_.push_back(i);
      }
    }
  }

  bool empty() const { return ready_.empty(); }
  /// One of those that are ready.
  uint32_t take(Random& random) {
    std::swap(ready_[random.below(ready_.size())], ready_.back());
    const uint32_t next = ready_.back();
    ready_.pop_back();
    return next;
  }
  /// It has ended: what waited for it alone is ready.
  void end(uint32_t action) {
    for (const uint32_t dependent : dependents_[action]) {
      if (--waiting_[dependent] == 0) {
        ready_.push_back(dependent);
      }
    }
  }

 private:
  std::vector<size_t> waiting_;  ///< actions that it waits for
  std::vector<std::vector<uint32_t>> dependents_;
  std::vector<uint32_t> ready_;
};

}  // namespace headrace::scheduler::test
