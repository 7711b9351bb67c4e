#include "exact_optimum.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "scheduler/placement.h"

namespace headrace::scheduler::test {
namespace {

/// Three bits per object: the tiers that hold its current value; none where it has no value.
using State = uint32_t;

constexpr State bit(size_t object, Tier tier) {
  return State{1} << (3 * object + static_cast<size_t>(tier));
}

class Search {
 public:
  Search(const Case& test_case, const ByteCosts& costs, size_t most_states)
      : case_(test_case), objects_(test_case.objects), costs_(costs), most_states_(most_states) {
    const size_t operations = case_.trace.operations.size();
    needed_.assign(operations + 1, std::vector<bool>(objects_.size()));
    reserved_.assign(operations + 1, {});
    for (size_t o = 0; o < objects_.size(); ++o) {
      look_ahead(o);
      if (objects_[o].home) {
        persistent_ |= State{7} << (3 * o);
      }
    }
  }

  std::optional<int64_t> run(int rounds) {
    Layer layer{{initial_state(), 0}};
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i <= case_.trace.operations.size(); ++i) {
        layer = cross(layer, i);
        if (layer.empty()) {
          return std::nullopt;
        }
      }
    }
    return std::min_element(layer.begin(), layer.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->second;
  }

 private:
  using Layer = std::unordered_map<State, int64_t>;
  using Entry = std::pair<int64_t, State>;
  using Queue = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;

  int64_t slot(size_t o) const { return slot_bytes(objects_[o], case_.budgets.alignment); }
  bool is_end(size_t position) const { return position == case_.trace.operations.size(); }

  void look_ahead(size_t o) {
    const auto& operations = case_.trace.operations;
    bool needed = objects_[o].home.has_value();
    bool is_last = true;
    int64_t first = -1;
    int64_t last = -1;
    for (size_t i = operations.size(); i-- > 0;) {
      for (const Use& use : operations[i].uses) {
        if (index_of(use.object) != o) {
          continue;
        }
        if (is_last && use.discard_after) {
          needed = false;
        }
        if (is_last) {
          last = static_cast<int64_t>(i);
          for (size_t after = i + 1; after <= operations.size(); ++after) {
            needed_[after][o] = needed;
          }
        }
        is_last = false;
        first = static_cast<int64_t>(i);
        needed = use.access != Access::write;
      }
      needed_[i][o] = needed;
    }
    if (is_last) {
      for (auto& at : needed_) {
        at[o] = needed;
      }
    }
    const auto anchor = anchor_of(objects_[o]);
    if (!anchor) {
      return;
    }
    const bool for_good = objects_[o].home.has_value();
    for (size_t i = 0; i <= operations.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      if (for_good || (first >= 0 && at >= first && at <= last)) {
        reserved_[i][static_cast<size_t>(*anchor)] += slot(o);
      }
    }
  }

  State initial_state() const {
    State state = 0;
    for (size_t o = 0; o < objects_.size(); ++o) {
      if (objects_[o].home) {
        state |= bit(o, *objects_[o].home);
      }
    }
    for (const Residency& residency : case_.initial) {
      state |= bit(index_of(residency.object), residency.tier);
    }
    return state;
  }

  /// Bytes that are free at an operation, without those of its writes.
  int64_t room(State state, size_t position, Tier tier) const {
    int64_t room = (tier == Tier::device ? case_.budgets.device : case_.budgets.host).count() -
                   reserved_[position][static_cast<size_t>(tier)];
    for (size_t o = 0; o < objects_.size(); ++o) {
      if ((state & bit(o, tier)) != 0 && anchor_of(objects_[o]) != tier) {
        room -= slot(o);
      }
    }
    return room;
  }

  /// The state after the operation; empty where it cannot run.
  std::optional<State> apply(State state, size_t position) const {
    const auto& uses = case_.trace.operations[position].uses;
    for (const Use& use : uses) {
      const size_t o = index_of(use.object);
      if (use.access != Access::write && (state & bit(o, use.tier)) == 0) {
        return std::nullopt;
      }
      if (use.access != Access::read) {
        state &= ~(State{7} << (3 * o));
        state |= bit(o, use.tier);
      }
    }
    if (room(state, position, Tier::device) < 0 || room(state, position, Tier::host) < 0) {
      return std::nullopt;
    }
    for (const Use& use : uses) {
      if (!needed_[position + 1][index_of(use.object)]) {
        state &= ~(State{7} << (3 * index_of(use.object)));
      }
    }
    return state;
  }

  bool is_final(State state) const {
    for (size_t o = 0; o < objects_.size(); ++o) {
      if (objects_[o].home && needed_.back()[o] && (state & bit(o, *objects_[o].home)) == 0) {
        return false;
      }
    }
    return true;
  }

  /// All moves between two operations, by cost; the states after the next operation.
  Layer cross(const Layer& from, size_t position) {
    Layer reached = from;
    Layer after;
    Queue queue;
    for (const auto& [state, cost] : from) {
      queue.emplace(cost, state);
    }
    while (!queue.empty()) {
      const auto [cost, state] = queue.top();
      queue.pop();
      if (cost > reached[state]) {
        continue;
      }
      if (++looked_at_ > most_states_) {
        return {};
      }
      if (is_end(position)) {
        if (is_final(state)) {
          const auto [entry, is_new] = after.emplace(state & persistent_, cost);
          entry->second = std::min(entry->second, cost);
        }
      } else if (const auto next = apply(state, position)) {
        const auto [entry, is_new] = after.emplace(*next, cost);
        entry->second = std::min(entry->second, cost);
      }
      expand(state, cost, position, reached, queue);
    }
    return after;
  }

  void reach(State state, int64_t cost, Layer& reached, Queue& queue) const {
    const auto [entry, is_new] = reached.emplace(state, cost);
    if (is_new || cost < entry->second) {
      entry->second = cost;
      queue.emplace(cost, state);
    }
  }

  void expand(State state, int64_t cost, size_t position, Layer& reached, Queue& queue) const {
    const std::array<int64_t, 2> free = {room(state, position, Tier::device),
                                         room(state, position, Tier::host)};
    for (size_t o = 0; o < objects_.size(); ++o) {
      const State here = (state >> (3 * o)) & 7U;
      if (here == 0) {
        continue;
      }
      for (const Tier tier : {Tier::device, Tier::host}) {
        const State rest = here & ~(State{1} << static_cast<size_t>(tier));
        const bool can_go = rest != 0 || !needed_[position][o];
        // A copy that is above its home costs nothing to keep but its slot.
        if (rest != here && can_go && objects_[o].home != tier) {
          reach(state & ~bit(o, tier), cost, reached, queue);
        }
      }
      const auto move = [&](Tier source, Tier target, size_t way) {
        if ((state & bit(o, source)) == 0 || (state & bit(o, target)) != 0 ||
            target > objects_[o].floor) {
          return;
        }
        const bool fits = target == Tier::nvme || anchor_of(objects_[o]) == target ||
                          free[static_cast<size_t>(target)] >= slot(o);
        if (fits) {
          reach(state | bit(o, target), cost + costs_[way] * objects_[o].size.count(), reached,
                queue);
        }
      };
      move(Tier::nvme, Tier::host, 0);
      if (objects_[o].home.value_or(objects_[o].floor) == Tier::nvme) {
        move(Tier::host, Tier::nvme, 1);
      }
      move(Tier::host, Tier::device, 2);
      move(Tier::device, Tier::host, 3);
    }
  }

  const Case& case_;
  const std::vector<ObjectFacts>& objects_;
  ByteCosts costs_;
  size_t most_states_;
  size_t looked_at_ = 0;
  State persistent_ = 0;                   ///< the bits of objects with a home
  std::vector<std::vector<bool>> needed_;  ///< by position and object: the value is read later
  std::vector<std::array<int64_t, 2>> reserved_;  ///< by position and tier: home and anchored slots
};

}  // namespace

std::optional<int64_t> exact_optimum(const Case& test_case, const ByteCosts& costs, int rounds,
                                     size_t most_states) {
  return Search(test_case, costs, most_states).run(rounds);
}

}  // namespace headrace::scheduler::test
