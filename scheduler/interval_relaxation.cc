#include "scheduler/interval_relaxation.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "base/check.h"

namespace headrace::scheduler {

namespace {

constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max();

/// Minimum-cost flow by successive shortest paths; all paths of one length are found together.
class CostFlow {
 public:
  explicit CostFlow(size_t nodes) : out_(nodes), potential_(nodes), level_(nodes), next_(nodes) {}

  void add_arc(size_t from, size_t to, int64_t capacity, int64_t cost) {
    out_[from].push_back(arcs_.size());
    arcs_.push_back({to, capacity, cost});
    out_[to].push_back(arcs_.size());
    arcs_.push_back({from, 0, -cost});
  }

  /// Cost of the cheapest flow of `amount` bytes from source to sink.
  std::optional<int64_t> run(size_t source, size_t sink, int64_t amount, int64_t most_steps) {
    int64_t cost = 0;
    while (amount > 0) {
      HR_CHECK(find_distances(source, sink), "{} bytes have no way", amount);
      while (amount > 0 && find_levels(source, sink)) {
        std::fill(next_.begin(), next_.end(), 0);
        while (const int64_t pushed = push(source, sink, amount)) {
          amount -= pushed;
          cost += pushed * (potential_[sink] - potential_[source]);
        }
      }
      if (steps_ > most_steps) {
        return std::nullopt;
      }
    }
    return cost;
  }

  /// Bytes on the arc that was added as number `index`.
  int64_t flow_of(size_t index) const { return arcs_[2 * index + 1].capacity; }

 private:
  struct Arc {
    size_t to = 0;
    int64_t capacity = 0;
    int64_t cost = 0;
  };

  int64_t reduced(size_t from, const Arc& arc) const {
    return arc.cost + potential_[from] - potential_[arc.to];
  }

  /// Dijkstra on reduced costs; moves the potentials so that shortest paths cost nothing.
  bool find_distances(size_t source, size_t sink) {
    std::vector<int64_t> distance(out_.size(), kInfinite);
    using Entry = std::pair<int64_t, size_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    distance[source] = 0;
    queue.emplace(0, source);
    while (!queue.empty()) {
      const auto [reached, node] = queue.top();
      queue.pop();
      if (reached > distance[node]) {
        continue;
      }
      for (const size_t a : out_[node]) {
        ++steps_;
        const Arc& arc = arcs_[a];
        if (arc.capacity > 0 && reached + reduced(node, arc) < distance[arc.to]) {
          distance[arc.to] = reached + reduced(node, arc);
          queue.emplace(distance[arc.to], arc.to);
        }
      }
    }
    if (distance[sink] == kInfinite) {
      return false;
    }
    for (size_t node = 0; node < out_.size(); ++node) {
      potential_[node] += std::min(distance[node], distance[sink]);
    }
    return true;
  }

  bool find_levels(size_t source, size_t sink) {
    std::fill(level_.begin(), level_.end(), -1);
    std::vector<size_t> queue{source};
    level_[source] = 0;
    for (size_t head = 0; head < queue.size() && level_[sink] < 0; ++head) {
      const size_t node = queue[head];
      for (const size_t a : out_[node]) {
        ++steps_;
        const Arc& arc = arcs_[a];
        if (arc.capacity > 0 && level_[arc.to] < 0 && reduced(node, arc) == 0) {
          level_[arc.to] = level_[node] + 1;
          queue.push_back(arc.to);
        }
      }
    }
    return level_[sink] >= 0;
  }

  /// Sends up to `amount` along one path of rising levels without reduced cost; returns how much.
  int64_t push(size_t source, size_t sink, int64_t amount) {
    std::vector<size_t> path;
    size_t node = source;
    while (node != sink) {
      bool moved = false;
      for (size_t& a = next_[node]; a < out_[node].size(); ++a) {
        ++steps_;
        const Arc& arc = arcs_[out_[node][a]];
        if (arc.capacity > 0 && level_[arc.to] == level_[node] + 1 && reduced(node, arc) == 0) {
          path.push_back(out_[node][a]);
          node = arc.to;
          moved = true;
          break;
        }
      }
      if (moved) {
        continue;
      }
      if (path.empty()) {
        return 0;
      }
      node = arcs_[path.back() ^ 1U].to;
      path.pop_back();
      ++next_[node];
    }
    for (const size_t a : path) {
      amount = std::min(amount, arcs_[a].capacity);
    }
    for (const size_t a : path) {
      arcs_[a].capacity -= amount;
      arcs_[a ^ 1U].capacity += amount;
    }
    return amount;
  }

  std::vector<Arc> arcs_;  // each followed by its reverse
  std::vector<std::vector<size_t>> out_;
  std::vector<int64_t> potential_;
  std::vector<int64_t> level_;
  std::vector<size_t> next_;
  int64_t steps_ = 0;
};

/// Bytes above the room at each position when everything stays.
std::vector<int64_t> overflow(const std::vector<StayInterval>& intervals,
                              const std::vector<int64_t>& room) {
  std::vector<int64_t> change(room.size() + 1);
  for (const StayInterval& interval : intervals) {
    change[static_cast<size_t>(interval.first)] += interval.bytes;
    change[static_cast<size_t>(interval.last) + 1] -= interval.bytes;
  }
  std::vector<int64_t> result(room.size());
  int64_t load = 0;
  for (size_t i = 0; i < room.size(); ++i) {
    load += change[i];
    result[i] = std::max<int64_t>(0, load - std::max<int64_t>(0, room[i]));
  }
  return result;
}

}  // namespace

int64_t fewest_bytes_let_go(std::vector<StayInterval> intervals, const std::vector<int64_t>& room) {
  std::sort(intervals.begin(), intervals.end(),
            [](const StayInterval& a, const StayInterval& b) { return a.first < b.first; });
  std::priority_queue<std::pair<int64_t, int64_t>> staying;  // last position, bytes
  std::vector<int64_t> ends_after(room.size());
  size_t next = 0;
  int64_t load = 0;
  int64_t let_go = 0;
  for (size_t i = 0; i < room.size(); ++i) {
    for (; next < intervals.size() && intervals[next].first <= static_cast<int64_t>(i); ++next) {
      staying.emplace(intervals[next].last, intervals[next].bytes);
      ends_after[static_cast<size_t>(intervals[next].last)] += intervals[next].bytes;
      load += intervals[next].bytes;
    }
    while (load > std::max<int64_t>(0, room[i])) {
      const auto [last, bytes] = staying.top();
      staying.pop();
      const int64_t part = std::min(bytes, load - std::max<int64_t>(0, room[i]));
      ends_after[static_cast<size_t>(last)] -= part;
      load -= part;
      let_go += part;
      if (part < bytes) {
        staying.emplace(last, bytes - part);
      }
    }
    load -= ends_after[i];
  }
  return let_go;
}

// What is let go has to cover the overflow at every position. As a flow: an interval is an arc over
// its positions, the net flow across a position is its overflow, and arcs back by one position take
// what is let go beyond that.
std::optional<LetGo> least_cost_let_go(const std::vector<StayInterval>& intervals,
                                       const std::vector<int64_t>& room, int64_t most_steps) {
  const std::vector<int64_t> over = overflow(intervals, room);
  // Neighbouring positions between which no interval begins or ends are one.
  std::vector<size_t> node(room.size() + 1);
  std::vector<bool> is_border(room.size() + 1);
  for (const StayInterval& interval : intervals) {
    is_border[static_cast<size_t>(interval.first)] = true;
    is_border[static_cast<size_t>(interval.last) + 1] = true;
  }
  std::vector<int64_t> demand;
  for (size_t i = 0; i < room.size(); ++i) {
    if (i == 0 || is_border[i]) {
      demand.push_back(0);
    }
    demand.back() = std::max(demand.back(), over[i]);
    node[i] = demand.size() - 1;
  }
  node[room.size()] = demand.size();
  const size_t source = demand.size() + 1;
  const size_t sink = source + 1;
  CostFlow flow(sink + 1);
  for (const StayInterval& interval : intervals) {
    flow.add_arc(node[static_cast<size_t>(interval.first)],
                 node[static_cast<size_t>(interval.last) + 1], interval.bytes, interval.cost);
  }
  int64_t amount = 0;
  for (size_t i = 0; i <= demand.size(); ++i) {
    const int64_t before = i == 0 ? 0 : demand[i - 1];
    const int64_t here = i == demand.size() ? 0 : demand[i];
    if (i < demand.size()) {
      flow.add_arc(i + 1, i, kInfinite / 4, 0);
    }
    if (here > before) {
      flow.add_arc(source, i, here - before, 0);
      amount += here - before;
    } else if (before > here) {
      flow.add_arc(i, sink, before - here, 0);
    }
  }
  const auto cost = flow.run(source, sink, amount, most_steps);
  if (!cost) {
    return std::nullopt;
  }
  LetGo result{*cost, {}};
  result.bytes.reserve(intervals.size());
  for (size_t i = 0; i < intervals.size(); ++i) {
    result.bytes.push_back(flow.flow_of(i));
  }
  return result;
}

}  // namespace headrace::scheduler
