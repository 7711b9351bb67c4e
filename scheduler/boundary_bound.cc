#include "scheduler/boundary_bound.h"

#include <algorithm>

#include "scheduler/placement.h"

namespace headrace::scheduler {

namespace {

/// Work on the combined bound; beyond it the sum of the two directions is reported.
constexpr int64_t kMostFlowSteps = 40'000'000;

}  // namespace

BoundaryBound::BoundaryBound(const CompileInput& input, const std::vector<ValueLife>& lives,
                             Boundary boundary)
    : input_(input), lives_(lives), boundary_(boundary), room_(make_room(false)) {}

void BoundaryBound::confine_to_host() {
  confined_.assign(input_.objects->size(), true);
  for (const Operation& operation : input_.trace->operations) {
    for (const Use& use : operation.uses) {
      if (use.tier == Tier::device) {
        confined_[index_of(use.object)] = false;
      }
    }
  }
  // What lies on the device at the start, or belongs there, may use it.
  for (size_t o = 0; o < confined_.size(); ++o) {
    confined_[o] = confined_[o] && (*input_.objects)[o].home != Tier::device;
  }
  for (const Residency& residency : input_.initial) {
    if (residency.tier == Tier::device) {
      confined_[index_of(residency.object)] = false;
    }
  }
  room_ = make_room(true);
}

bool BoundaryBound::born_above(const ValueLife& life) const {
  return life.in[0] || (boundary_ == Boundary::drive && life.in[1]);
}

bool BoundaryBound::born_below(const ValueLife& life) const {
  return life.in[2] || (boundary_ == Boundary::link && life.in[1]);
}

bool BoundaryBound::has_slot_for_good(const ObjectFacts& facts) const {
  return facts.home && is_above(*facts.home);
}

bool BoundaryBound::may_sink(const ObjectFacts& facts) const {
  return !is_above(facts.floor);
}

// Everything above the boundary counts, except what only lowers the bound: copies on their way and
// the second copy of an object that is in device and host.
std::vector<int64_t> BoundaryBound::make_room(bool only_host) const {
  const Budgets& budgets = input_.budgets;
  int64_t free = only_host ? 0 : budgets.device.count();
  if (boundary_ == Boundary::drive) {
    free = detail::checked_add(free, budgets.host.count());
  }
  const auto counts = [&](Tier tier) {
    return is_above(tier) && !(only_host && tier == Tier::device);
  };
  for (const ObjectFacts& facts : *input_.objects) {
    if (facts.home && counts(*facts.home)) {
      free -= slot_bytes(facts, budgets.alignment);
    }
  }
  std::vector<int64_t> room(input_.trace->operations.size(), free);
  for (size_t i = 0; i < room.size(); ++i) {
    for (const Use& use : input_.trace->operations[i].uses) {
      const ObjectFacts& facts = (*input_.objects)[index_of(use.object)];
      if (counts(use.tier) && facts.home != use.tier) {
        room[i] -= slot_bytes(facts, budgets.alignment);
      }
    }
  }
  for (const ValueLife& life : lives_) {
    const ObjectFacts& facts = (*input_.objects)[index_of(life.object)];
    if (may_sink(facts) || has_slot_for_good(facts) || !counts_object(life.object)) {
      continue;
    }
    int64_t from = life.born;
    for (const Need& need : life.needs) {
      for (int64_t i = from + 1; i < need.position; ++i) {
        room[static_cast<size_t>(i)] -= slot_bytes(facts, budgets.alignment);
      }
      from = need.position;
    }
  }
  return room;
}

const Need* BoundaryBound::first_need_above(const ValueLife& life) const {
  for (const Need& need : life.needs) {
    if (is_above(need.tier)) {
      return &need;
    }
  }
  return nullptr;
}

bool BoundaryBound::must_move_up(const ValueLife& life) const {
  if (born_above(life)) {
    return false;
  }
  const ObjectFacts& facts = (*input_.objects)[index_of(life.object)];
  return first_need_above(life) != nullptr || (life.goes_home && is_above(*facts.home));
}

bool BoundaryBound::must_move_down(const ValueLife& life) const {
  if (born_below(life)) {
    return false;
  }
  const ObjectFacts& facts = (*input_.objects)[index_of(life.object)];
  return (life.goes_home && !is_above(*facts.home)) ||
         std::any_of(life.needs.begin(), life.needs.end(),
                     [&](const Need& need) { return !is_above(need.tier); });
}

bool BoundaryBound::may_leave(const ValueLife& life) const {
  const ObjectFacts& facts = (*input_.objects)[index_of(life.object)];
  return may_sink(facts) && !has_slot_for_good(facts) && counts_object(life.object);
}

std::vector<int64_t> BoundaryBound::needs_above(const ValueLife& life, const Window& window) const {
  std::vector<int64_t> positions;
  for (const Need& need : life.needs) {
    if (is_above(need.tier) && need.position >= window.begin && need.position < window.end) {
      positions.push_back(need.position);
    }
  }
  return positions;
}

/// The stretches between needs in which the value stays above or has to come up again.
std::vector<Stay> BoundaryBound::up_gaps(const ValueLife& life, const Window& window) const {
  std::vector<Stay> gaps;
  if (!may_leave(life)) {
    return gaps;
  }
  int64_t from = life.born;
  bool above = born_above(life);
  if (window.begin > 0 && from < static_cast<int64_t>(window.begin)) {
    from = static_cast<int64_t>(window.begin) - 1;
    above = true;
  }
  for (const int64_t position : needs_above(life, window)) {
    // Between two operations that follow each other nothing has to leave.
    if (above && from + 1 < position) {
      gaps.push_back({&life, from, position, {from + 1, position - 1, size(life), 1}});
    }
    above = true;
    from = position;
  }
  return gaps;
}

int64_t BoundaryBound::up_over(const Window& window) const {
  int64_t required = 0;
  std::vector<StayInterval> intervals;
  for (const ValueLife& life : lives_) {
    if (life.born >= static_cast<int64_t>(window.end)) {
      continue;
    }
    const bool known = window.begin == 0 || life.born >= static_cast<int64_t>(window.begin);
    const Need* first = first_need_above(life);
    const bool in_time = first != nullptr && first->position < window.end;
    const bool at_end = window.end > input_.trace->operations.size();
    if (known && must_move_up(life) && (in_time || at_end)) {
      required += size(life);
    }
    for (const Stay& stay : up_gaps(life, window)) {
      intervals.push_back(stay.interval);
    }
  }
  return required + fewest_bytes_let_go(std::move(intervals), room_);
}

bool BoundaryBound::may_avoid_moving_down(const ValueLife& life) const {
  return !born_below(life) && !must_move_down(life);
}

std::vector<Stay> BoundaryBound::stays() const {
  std::vector<Stay> all;
  for (const ValueLife& life : lives_) {
    std::vector<Stay> gaps = up_gaps(life, whole_window());
    if (!gaps.empty() && may_avoid_moving_down(life)) {
      // It moves down once at most; the longest gap stands for that.
      std::max_element(gaps.begin(), gaps.end(), [](const Stay& a, const Stay& b) {
        return a.to - a.from < b.to - b.from;
      })->interval.cost = 2;
    }
    all.insert(all.end(), gaps.begin(), gaps.end());
  }
  return all;
}

int64_t BoundaryBound::down() const {
  int64_t required = 0;
  std::vector<StayInterval> intervals;
  std::vector<int64_t> room = room_;
  for (const ValueLife& life : lives_) {
    if (must_move_down(life)) {
      required += size(life);
      continue;
    }
    const std::vector<int64_t> needs = needs_above(life, whole_window());
    if (needs.empty() || !may_leave(life) || born_below(life) || life.born + 1 >= needs.back()) {
      continue;
    }
    intervals.push_back({life.born + 1, needs.back() - 1, size(life), 1});
    // Where an operation on the way uses it, its slot counts once.
    for (size_t i = 0; i + 1 < needs.size(); ++i) {
      room[static_cast<size_t>(needs[i])] +=
          slot_bytes((*input_.objects)[index_of(life.object)], input_.budgets.alignment);
    }
  }
  return required + fewest_bytes_let_go(std::move(intervals), room);
}

CrossingBound BoundaryBound::whole_trace() const {
  int64_t required = 0;
  for (const ValueLife& life : lives_) {
    required += (must_move_up(life) ? size(life) : 0) + (must_move_down(life) ? size(life) : 0);
  }
  std::vector<StayInterval> intervals;
  for (const Stay& stay : stays()) {
    intervals.push_back(stay.interval);
  }
  const auto combined = least_cost_let_go(intervals, room_, kMostFlowSteps);
  CrossingBound bound;
  bound.up = up_over(whole_window());
  bound.down = down();
  bound.both = std::max(bound.up + bound.down, required + (combined ? combined->cost : 0));
  return bound;
}

}  // namespace headrace::scheduler
