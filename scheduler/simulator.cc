#include "scheduler/simulator.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "base/check.h"
#include "scheduler/costs.h"

namespace headrace::scheduler {

namespace {

/// One server per lane; a lane that becomes idle takes the earliest action of the list that is
/// ready. The in_order operations of a lane start in the order of the list. The two lanes of a
/// drive slow each other down where the rates say so; a direct read and a copy to the device share
/// the link.
class EventSimulation {
 public:
  EventSimulation(const CompileInput& input, const std::vector<Action>& actions)
      : input_(input),
        actions_(actions),
        drive_share_(drive_share(input.rates)),
        waiting_(actions.size()),
        may_start_(actions.size(), false) {
    times_.begin.resize(actions.size());
    times_.end.resize(actions.size());
    find_successors();
    for (uint32_t i = 0; i < actions.size(); ++i) {
      waiting_[i] = static_cast<uint32_t>(actions[i].after.size());
      if (is_in_order(actions[i])) {
        operations_[static_cast<size_t>(*lane_of(input, actions[i]))].push_back(i);
      }
    }
  }

  ActionTimes run() {
    for (uint32_t i = 0; i < actions_.size(); ++i) {
      if (actions_[i].after.empty()) {
        make_ready(i);
      }
    }
    start_idle_lanes();
    while (!events_.empty()) {
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time <= now_) {
        const Event event = events_.top();
        events_.pop();
        if (event.frees_lane) {
          free_lane(event);
        } else {
          finish(event.action);
        }
      }
      start_idle_lanes();
    }
    HR_CHECK(finished_ == actions_.size(), "{} of {} actions ran", finished_, actions_.size());
    return std::move(times_);
  }

 private:
  /// The lane is done with an action, or the action has ended.
  struct Event {
    double time = 0;
    uint32_t action = 0;
    bool frees_lane = false;
    uint32_t pace = 0;  ///< of the lane, when this was foreseen

    bool operator>(const Event& other) const {
      return std::tie(time, action) > std::tie(other.time, other.action);
    }
  };

  /// What a lane is doing.
  struct Work {
    bool is_busy = false;
    uint32_t action = 0;
    double seconds_left = 0;  ///< with the lane's whole rate
    double since = 0;         ///< when that was left
    double share = 1;         ///< of the lane's rate, from then on
    uint32_t pace = 0;        ///< changes with the share and the action: foreseen ends are void
  };

  void find_successors() {
    first_successor_.resize(actions_.size() + 1);
    for (uint32_t i = 0; i < actions_.size(); ++i) {
      for (const uint32_t before : actions_[i].after) {
        HR_CHECK(before < i, "action {} depends on action {}", i, before);
        ++first_successor_[before + 1];
      }
    }
    std::partial_sum(first_successor_.begin(), first_successor_.end(), first_successor_.begin());
    successors_.resize(first_successor_.back());
    std::vector<uint32_t> next(first_successor_.begin(), first_successor_.end() - 1);
    for (uint32_t i = 0; i < actions_.size(); ++i) {
      for (const uint32_t before : actions_[i].after) {
        successors_[next[before]++] = i;
      }
    }
  }

  bool is_in_order(const Action& action) const {
    return action.kind == ActionKind::operation &&
           input_.trace->operations[action.operation].in_order;
  }

  void make_ready(uint32_t action) {
    const auto lane = lane_of(input_, actions_[action]);
    if (!lane) {
      free_actions_.push_back(action);
      return;
    }
    const auto index = static_cast<size_t>(*lane);
    if (!is_in_order(actions_[action])) {
      ready_[index].push(action);
      return;
    }
    may_start_[action] = true;
    auto& queue = operations_[index];
    while (!queue.empty() && may_start_[queue.front()]) {
      ready_[index].push(queue.front());
      queue.pop_front();
    }
  }

  void finish(uint32_t action) {
    times_.end[action] = now_;
    ++finished_;
    for (uint32_t i = first_successor_[action]; i < first_successor_[action + 1]; ++i) {
      const uint32_t next = successors_[i];
      if (--waiting_[next] == 0) {
        make_ready(next);
      }
    }
  }

  void start_idle_lanes() {
    while (!free_actions_.empty()) {
      const uint32_t action = free_actions_.back();
      free_actions_.pop_back();
      times_.begin[action] = now_;
      finish(action);
    }
    for (size_t lane = 0; lane < ready_.size(); ++lane) {
      Work& work = work_[lane];
      if (work.is_busy || ready_[lane].empty()) {
        continue;
      }
      const uint32_t action = ready_[lane].top();
      ready_[lane].pop();
      times_.begin[action] = now_;
      work.is_busy = true;
      work.action = action;
      work.seconds_left = occupancy_of(input_, actions_[action]);
      work.since = now_;
      work.share = 1;
      foresee(work);
      share_rates();
    }
  }

  void foresee(Work& work) {
    events_.push({now_ + work.seconds_left / work.share, work.action, true, ++work.pace});
  }

  void free_lane(const Event& event) {
    const Lane lane = *lane_of(input_, actions_[event.action]);
    Work& work = work_[static_cast<size_t>(lane)];
    if (event.pace != work.pace) {
      return;
    }
    work.is_busy = false;
    events_.push({now_ + latency_of(input_.rates, lane), event.action, false, 0});
    share_rates();
  }

  Work& work_of(Lane lane) { return work_[static_cast<size_t>(lane)]; }

  /// Gives the lanes that share the drive or the link the shares that each has now.
  void share_rates() {
    const Work& read = work_of(Lane::nvme_read);
    const Work& copy = work_of(Lane::host_to_device);
    const double drive = read.is_busy && work_of(Lane::nvme_write).is_busy ? drive_share_ : 1;
    LinkShares shares{drive, 1};
    if (read.is_busy && copy.is_busy &&
        is_direct(actions_[read.action].from, actions_[read.action].to)) {
      shares = link_shares(input_.rates, drive);
    }
    set_share(work_of(Lane::nvme_read), shares.direct);
    set_share(work_of(Lane::nvme_write), drive);
    set_share(work_of(Lane::host_to_device), shares.copy);
  }

  void set_share(Work& work, double share) {
    if (!work.is_busy || work.share == share) {
      return;
    }
    work.seconds_left = std::max(0.0, work.seconds_left - (now_ - work.since) * work.share);
    work.since = now_;
    work.share = share;
    foresee(work);
  }

  const CompileInput& input_;
  const std::vector<Action>& actions_;
  double drive_share_;
  std::vector<uint32_t> waiting_;
  std::vector<uint32_t> first_successor_;  // of each action, in successors_
  std::vector<uint32_t> successors_;
  std::vector<bool> may_start_;  // operations whose dependencies have ended
  std::array<std::deque<uint32_t>, kLaneCount> operations_;  // not yet ready, in order
  using MinHeap = std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>>;
  std::array<MinHeap, kLaneCount> ready_;
  std::array<Work, kLaneCount> work_;
  std::vector<uint32_t> free_actions_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0;
  size_t finished_ = 0;
  ActionTimes times_;
};

}  // namespace

ActionTimes simulate_actions(const CompileInput& input, const std::vector<Action>& actions) {
  return EventSimulation(input, actions).run();
}

std::vector<Action> order_by_start(const CompileInput& input, std::vector<Action> actions) {
  const ActionTimes times = simulate_actions(input, actions);
  std::vector<uint32_t> order(actions.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return times.begin[a] < times.begin[b]; });
  std::vector<uint32_t> rank(actions.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    rank[order[i]] = i;
  }
  std::vector<Action> sorted;
  sorted.reserve(actions.size());
  for (const uint32_t i : order) {
    Action& action = sorted.emplace_back(std::move(actions[i]));
    for (uint32_t& before : action.after) {
      before = rank[before];
    }
    std::sort(action.after.begin(), action.after.end());
  }
  return sorted;
}

Timeline simulate(const CompileInput& input, const Schedule& schedule) {
  const ActionTimes times = simulate_actions(input, schedule.actions);
  Timeline timeline;
  for (uint32_t i = 0; i < schedule.actions.size(); ++i) {
    const auto lane = lane_of(input, schedule.actions[i]);
    if (lane) {
      timeline.spans.push_back({i, *lane, times.begin[i], times.end[i]});
    }
    timeline.seconds = std::max(timeline.seconds, times.end[i]);
  }
  return timeline;
}

}  // namespace headrace::scheduler
