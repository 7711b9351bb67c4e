#include "scheduler/interval_relaxation.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

#include "base/check.h"

namespace headrace::scheduler {

namespace {

constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max();

/// Minimum-cost flow by successive shortest paths; all paths of one length are found together.
class CostFlow {
 public:
  explicit CostFlow(size_t nodes)
      : nodes_(nodes), first_(nodes + 1), potential_(nodes), level_(nodes), next_(nodes) {}

  void add_arc(size_t from, size_t to, int64_t capacity, int64_t cost) {
    added_.push_back({static_cast<uint32_t>(from), static_cast<uint32_t>(to), capacity, cost});
  }

  /// Cost of the cheapest flow of `amount` bytes from source to sink. Once, after all arcs.
  std::optional<int64_t> run(size_t source, size_t sink, int64_t amount, int64_t most_steps) {
    lay_out_arcs();
    int64_t cost = 0;
    while (amount > 0) {
      HR_CHECK(find_distances(source, sink), "{} bytes have no way", amount);
      while (amount > 0 && find_levels(source, sink)) {
        std::copy(first_.begin(), first_.end() - 1, next_.begin());
        const int64_t pushed = push(source, sink, amount);
        amount -= pushed;
        cost += pushed * (potential_[sink] - potential_[source]);
      }
      if (steps_ > most_steps) {
        return std::nullopt;
      }
    }
    return cost;
  }

  /// Bytes on the arc that was added as number `index`.
  int64_t flow_of(size_t index) const { return arcs_[arcs_[place_[index]].reverse].capacity; }

 private:
  struct AddedArc {
    uint32_t from = 0;
    uint32_t to = 0;
    int64_t capacity = 0;
    int64_t cost = 0;
  };
  struct Arc {
    uint32_t to = 0;
    uint32_t reverse = 0;  ///< the arc back
    int64_t capacity = 0;
    int64_t cost = 0;
  };

  /// The arcs of a node side by side, in the order in which they were added.
  void lay_out_arcs() {
    for (const AddedArc& arc : added_) {
      ++first_[arc.from + 1];
      ++first_[arc.to + 1];
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    arcs_.resize(2 * added_.size());
    for (const AddedArc& arc : added_) {
      const uint32_t there = next[arc.from]++;
      const uint32_t back = next[arc.to]++;
      arcs_[there] = {arc.to, back, arc.capacity, arc.cost};
      arcs_[back] = {arc.from, there, 0, -arc.cost};
      place_.push_back(there);
    }
  }

  int64_t reduced(size_t from, const Arc& arc) const {
    return arc.cost + potential_[from] - potential_[arc.to];
  }

  /// Dijkstra on reduced costs up to the sink; moves the potentials so that shortest paths cost
  /// nothing.
  bool find_distances(size_t source, size_t sink) {
    std::vector<int64_t> distance(nodes_, kInfinite);
    using Entry = std::pair<int64_t, uint32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    distance[source] = 0;
    queue.emplace(0, static_cast<uint32_t>(source));
    while (!queue.empty() && queue.top().first < distance[sink]) {
      const auto [reached, node] = queue.top();
      queue.pop();
      if (reached > distance[node]) {
        continue;
      }
      for (uint32_t a = first_[node]; a < first_[node + 1]; ++a) {
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
    // What is farther than the sink, found or not, moves as far as it.
    for (size_t node = 0; node < nodes_; ++node) {
      potential_[node] += std::min(distance[node], distance[sink]);
    }
    return true;
  }

  bool find_levels(size_t source, size_t sink) {
    std::fill(level_.begin(), level_.end(), -1);
    std::vector<uint32_t> queue{static_cast<uint32_t>(source)};
    level_[source] = 0;
    for (size_t head = 0; head < queue.size() && level_[sink] < 0; ++head) {
      const uint32_t node = queue[head];
      for (uint32_t a = first_[node]; a < first_[node + 1]; ++a) {
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

  /// Sends up to `amount` along paths of rising levels without reduced cost until there are none;
  /// returns how much.
  int64_t push(size_t source, size_t sink, const int64_t amount) {
    std::vector<uint32_t> path;
    auto node = static_cast<uint32_t>(source);
    int64_t sent = 0;
    for (;;) {
      if (node == sink) {
        sent += send(path, amount - sent);
        if (sent == amount) {
          return sent;
        }
        node = arcs_[arcs_[path.back()].reverse].to;
        path.pop_back();
        continue;
      }
      if (advance(node, path)) {
        node = arcs_[path.back()].to;
        continue;
      }
      if (path.empty()) {
        return sent;
      }
      node = arcs_[arcs_[path.back()].reverse].to;
      path.pop_back();
      ++next_[node];
    }
  }

  /// Goes on along the first arc of the node that may lead to the sink.
  bool advance(uint32_t node, std::vector<uint32_t>& path) {
    for (uint32_t& a = next_[node]; a < first_[node + 1]; ++a) {
      ++steps_;
      const Arc& arc = arcs_[a];
      if (arc.capacity > 0 && level_[arc.to] == level_[node] + 1 && reduced(node, arc) == 0) {
        path.push_back(a);
        return true;
      }
    }
    return false;
  }

  /// Sends what the path can take and cuts it behind its first arc that is full.
  int64_t send(std::vector<uint32_t>& path, int64_t amount) {
    for (const uint32_t a : path) {
      amount = std::min(amount, arcs_[a].capacity);
    }
    size_t length = path.size();
    for (size_t i = path.size(); i-- > 0;) {
      Arc& arc = arcs_[path[i]];
      arc.capacity -= amount;
      arcs_[arc.reverse].capacity += amount;
      length = arc.capacity == 0 ? i + 1 : length;
    }
    path.resize(length);
    return amount;
  }

  size_t nodes_;
  std::vector<AddedArc> added_;
  std::vector<uint32_t> place_;  // of the added arcs
  std::vector<Arc> arcs_;        // by the node they leave
  std::vector<uint32_t> first_;  // by node, and one more
  std::vector<int64_t> potential_;
  std::vector<int64_t> level_;
  std::vector<uint32_t> next_;
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
