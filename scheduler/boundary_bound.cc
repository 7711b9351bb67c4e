#include "scheduler/boundary_bound.h"

#include <algorithm>

#include "scheduler/placement.h"

namespace headrace::scheduler {

namespace {

/// Work on the combined bound; beyond it the sum of the two directions is reported.
constexpr int64_t kMostFlowSteps = 40'000'000;

/// Between two operations that follow each other nothing has to leave.
void add_gap(int64_t from, int64_t to, int64_t bytes, std::vector<StayInterval>& gaps) {
  if (from + 1 < to) {
    gaps.push_back({from + 1, to - 1, bytes, 1});
  }
}

}  // namespace

BoundaryBound::BoundaryBound(const CompileInput& input, const std::vector<ValueLife>& lives,
                             Boundary boundary)
    : input_(input), lives_(lives), boundary_(boundary), room_(make_room()) {}

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
std::vector<int64_t> BoundaryBound::make_room() const {
  const Budgets& budgets = input_.budgets;
  int64_t free = budgets.device.count();
  if (boundary_ == Boundary::drive) {
    free = detail::checked_add(free, budgets.host.count());
  }
  for (const ObjectFacts& facts : *input_.objects) {
    if (has_slot_for_good(facts)) {
      free -= slot_bytes(facts, budgets.alignment);
    }
  }
  std::vector<int64_t> room(input_.trace->operations.size(), free);
  for (size_t i = 0; i < room.size(); ++i) {
    for (const Use& use : input_.trace->operations[i].uses) {
      const ObjectFacts& facts = (*input_.objects)[index_of(use.object)];
      if (is_above(use.tier) && facts.home != use.tier) {
        room[i] -= slot_bytes(facts, budgets.alignment);
      }
    }
  }
  for (const ValueLife& life : lives_) {
    const ObjectFacts& facts = (*input_.objects)[index_of(life.object)];
    if (may_sink(facts) || has_slot_for_good(facts)) {
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
  return may_sink(facts) && !has_slot_for_good(facts);
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
std::vector<StayInterval> BoundaryBound::up_gaps(const ValueLife& life,
                                                 const Window& window) const {
  std::vector<StayInterval> gaps;
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
    if (above) {
      add_gap(from, position, size(life), gaps);
    }
    above = true;
    from = position;
  }
  return gaps;
}

int64_t BoundaryBound::up_over(const Window& window) const {
  int64_t required = 0;
  std::vector<StayInterval> gaps;
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
    const auto more = up_gaps(life, window);
    gaps.insert(gaps.end(), more.begin(), more.end());
  }
  return required + fewest_bytes_let_go(std::move(gaps), room_);
}

CrossingBound BoundaryBound::whole_trace() const {
  const Window window{0, static_cast<uint32_t>(input_.trace->operations.size()) + 1};
  CrossingBound bound;
  std::vector<StayInterval> down;
  std::vector<StayInterval> both;
  std::vector<int64_t> room_down = room_;
  int64_t required = 0;
  for (const ValueLife& life : lives_) {
    std::vector<StayInterval> gaps = up_gaps(life, window);
    if (must_move_up(life)) {
      required += size(life);
    }
    if (must_move_down(life)) {
      required += size(life);
      bound.down += size(life);
    } else if (!born_below(life) && !gaps.empty()) {
      // It can only leave by moving down, once; its longest gap stands for that.
      const std::vector<int64_t> needs = needs_above(life, window);
      add_gap(life.born, needs.back(), size(life), down);
      // Where an operation on the way uses it, its slot counts once.
      for (size_t i = 0; i + 1 < needs.size(); ++i) {
        room_down[static_cast<size_t>(needs[i])] += slot_bytes(
            (*input_.objects)[index_of(life.object)], input_.budgets.alignment);
      }
      std::max_element(gaps.begin(), gaps.end(), [](const auto& a, const auto& b) {
        return a.last - a.first < b.last - b.first;
      })->cost = 2;
    }
    both.insert(both.end(), gaps.begin(), gaps.end());
  }
  const auto combined = least_cost_let_go(both, room_, kMostFlowSteps);
  bound.up = up_over(window);
  bound.down += fewest_bytes_let_go(std::move(down), room_down);
  bound.both = std::max(bound.up + bound.down, required + combined.value_or(0));
  return bound;
}

}  // namespace headrace::scheduler
