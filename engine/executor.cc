#include "engine/executor.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <queue>
#include <utility>

#include "base/check.h"

namespace headrace::engine {

using scheduler::Action;
using scheduler::ActionKind;
using scheduler::Lane;
using scheduler::Schedule;
using scheduler::Trace;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Ends of actions, handed from any thread to the driver.
class EndQueue {
 public:
  struct End {
    uint32_t action = 0;
    Clock::time_point time;
    std::exception_ptr error;
  };

  void push(uint32_t action, std::exception_ptr error) {
    // Notified under the lock: the driver may destroy the queue as soon as it has the last end.
    const std::lock_guard lock(mutex_);
    ends_.push_back({action, Clock::now(), std::move(error)});
    changed_.notify_one();
  }

  std::vector<End> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ends_.empty(); });
    return std::exchange(ends_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<End> ends_;
};

Lane transfer_lane(const Action& action) {
  if (action.from == Tier::nvme) {
    return Lane::nvme_read;
  }
  if (action.to == Tier::nvme) {
    return Lane::nvme_write;
  }
  return action.to == Tier::device ? Lane::host_to_device : Lane::device_to_host;
}

tiers::LeaseMode lease_mode(scheduler::Access access) {
  switch (access) {
    case scheduler::Access::read:
      return tiers::LeaseMode::read;
    case scheduler::Access::write:
      return tiers::LeaseMode::write;
    case scheduler::Access::update:
      return tiers::LeaseMode::update;
  }
  return tiers::LeaseMode::read;
}

}  // namespace

TimeSplit& TimeSplit::operator+=(const TimeSplit& part) {
  compute += part.compute;
  cpu_optimizer += part.cpu_optimizer;
  nvme_read += part.nvme_read;
  nvme_write += part.nvme_write;
  host_to_device += part.host_to_device;
  device_to_host += part.device_to_host;
  other += part.other;
  total += part.total;
  return *this;
}

double& part_of(TimeSplit& split, std::optional<Lane> lane) {
  if (!lane) {
    return split.other;
  }
  switch (*lane) {
    case Lane::nvme_read:
      return split.nvme_read;
    case Lane::nvme_write:
      return split.nvme_write;
    case Lane::host_to_device:
      return split.host_to_device;
    case Lane::device_to_host:
      return split.device_to_host;
    case Lane::compute:
      return split.compute;
    case Lane::cpu_optimizer:
      return split.cpu_optimizer;
  }
  return split.other;
}

/// One replay. Everything here runs on the driver thread, but for EndQueue::push and the bodies of
/// CPU operations.
class Executor::Run {
 public:
  Run(Executor& executor, const Trace& trace, const Schedule& schedule, const OperationBody& body,
      bool record)
      : executor_(executor), trace_(trace), schedule_(schedule), body_(body) {
    if (record) {
      report_.record.emplace();
    }
    const size_t count = schedule.actions.size();
    open_dependencies_.resize(count);
    dependents_.resize(count);
    state_.resize(count, State::waiting);
    begin_.resize(count);
    could_begin_.resize(count);
    leases_.resize(count);
    may_start_.resize(count, false);
    report_.operation_seconds.resize(trace.operations.size());
    report_.operation_ends.resize(trace.operations.size());
    for (uint32_t i = 0; i < count; ++i) {
      open_dependencies_[i] = static_cast<uint32_t>(schedule.actions[i].after.size());
      for (const uint32_t before : schedule.actions[i].after) {
        HR_CHECK(before < i, "action {} depends on later action {}", i, before);
        dependents_[before].push_back(i);
      }
      if (is_in_order(schedule.actions[i])) {
        lane_operations_[static_cast<size_t>(lane_of(schedule.actions[i]))].push_back(i);
      }
      if (open_dependencies_[i] == 0) {
        ready_.push(i);
      }
    }
  }

  RunReport run() {
    start_ = Clock::now();
    accounted_until_ = start_;
    if (report_.record) {
      report_.record->start = start_;
      note_level(Tier::device, start_);
      note_level(Tier::host, start_);
    }
    std::fill(could_begin_.begin(), could_begin_.end(), start_);
    start_ready();
    while (in_flight_ > 0) {
      std::optional<Lane> cause = current_cause();
      const auto ends = ends_.wait();
      for (const auto& end : ends) {
        account(cause, end.time);
        finish(end);
        cause = current_cause();
      }
      start_ready();
    }
    account(std::nullopt, Clock::now());
    report_.split.total = seconds_between(start_, accounted_until_);
    if (error_) {
      std::rethrow_exception(error_);
    }
    HR_CHECK(done_ == schedule_.actions.size(), "schedule of '{}' stalled: {} of {} actions ran",
             trace_.name, done_, schedule_.actions.size());
    return std::move(report_);
  }

 private:
  enum class State : uint8_t { waiting, in_flight, done };

  void start_ready() {
    while (!ready_.empty() && !error_) {
      const uint32_t action = ready_.top();
      ready_.pop();
      try {
        start(action);
      } catch (...) {
        leases_[action].clear();
        if (!error_) {
          error_ = std::current_exception();
        }
      }
    }
  }

  void start(uint32_t index) {
    const Action& action = schedule_.actions[index];
    switch (action.kind) {
      case ActionKind::place:
        executor_.store_.place(action.object, action.from, action.offset);
        note_level(action.from, Clock::now());
        complete(index, could_begin_[index]);
        return;
      case ActionKind::drop:
        executor_.store_.drop(action.object, action.from);
        note_level(action.from, Clock::now());
        complete(index, could_begin_[index]);
        return;
      case ActionKind::transfer: {
        const auto begin = Clock::now();
        const Completion end = executor_.store_.transfer(action.object, action.from, action.to,
                                                         action.offset, io_class(index));
        note_level(action.to, begin);
        launched(index, transfer_lane(action), begin);
        end.on_done(
            [this, index](std::exception_ptr error) { ends_.push(index, std::move(error)); });
        return;
      }
      case ActionKind::operation:
        if (is_in_order(action)) {
          start_in_order(lane_of(action), index);
        } else {
          start_operation(index);
        }
        return;
    }
  }

  bool is_in_order(const Action& action) const {
    return action.kind == ActionKind::operation && trace_.operations[action.operation].in_order;
  }

  void start_in_order(Lane lane, uint32_t ready) {
    may_start_[ready] = true;
    auto& queue = lane_operations_[static_cast<size_t>(lane)];
    while (!queue.empty() && may_start_[queue.front()]) {
      const uint32_t next = queue.front();
      queue.pop_front();
      start_operation(next);
    }
  }

  void start_operation(uint32_t index) {
    const uint32_t number = schedule_.actions[index].operation;
    const scheduler::Operation& operation = trace_.operations.at(number);
    auto& leases = leases_[index];
    std::vector<std::span<std::byte>> bytes;
    for (const scheduler::Use& use : operation.uses) {
      leases.push_back(executor_.store_.acquire(use.object, use.tier, lease_mode(use.access)));
      bytes.push_back(leases.back().bytes());
    }
    const auto begin = Clock::now();
    if (operation.lane == Lane::compute) {
      body_(number, bytes);
      const Completion end = executor_.compute_.record_completion();
      launched(index, operation.lane, begin);
      end.on_done([this, index](std::exception_ptr error) { ends_.push(index, std::move(error)); });
      return;
    }
    launched(index, operation.lane, begin);
    executor_.cpu_worker_.post([this, index, number, bytes = std::move(bytes)] {
      std::exception_ptr error;
      try {
        body_(number, bytes);
      } catch (...) {
        error = std::current_exception();
      }
      ends_.push(index, error);
    });
  }

  /// A read is a demand read when every earlier operation has ended: something waits for it now.
  aio::IoClass io_class(uint32_t index) {
    if (schedule_.actions[index].to == Tier::nvme) {
      return aio::IoClass::write_back;
    }
    return first_open_operation() > index ? aio::IoClass::demand : aio::IoClass::prefetch;
  }

  void launched(uint32_t index, Lane lane, Clock::time_point begin) {
    state_[index] = State::in_flight;
    begin_[index] = begin;
    ++in_flight_;
    note_drive(begin);
    if (lane_in_flight_[static_cast<size_t>(lane)]++ == 0) {
      lane_since_[static_cast<size_t>(lane)] = begin_[index];
      period_since_[static_cast<size_t>(lane)] =
          std::max(could_begin_[index], lane_last_end_[static_cast<size_t>(lane)]);
      shared_since_[static_cast<size_t>(lane)] = drive_shared_;
    }
  }

  static bool is_of_drive(Lane lane) { return lane == Lane::nvme_read || lane == Lane::nvme_write; }

  /// Before what is in flight changes.
  void note_drive(Clock::time_point now) {
    if (lane_in_flight_[static_cast<size_t>(Lane::nvme_read)] > 0 &&
        lane_in_flight_[static_cast<size_t>(Lane::nvme_write)] > 0) {
      drive_shared_ += std::max(0.0, seconds_between(drive_noted_, now));
    }
    drive_noted_ = std::max(drive_noted_, now);
  }

  void finish(const EndQueue::End& end) {
    const Action& action = schedule_.actions[end.action];
    const Lane lane = lane_of(action);
    const auto lane_index = static_cast<size_t>(lane);
    --in_flight_;
    note_drive(end.time);
    if (action.kind == ActionKind::transfer) {
      period_bytes_[lane_index] += executor_.store_.spec(action.object).size.count();
    }
    if (--lane_in_flight_[lane_index] == 0) {
      report_.busy[lane_index] += seconds_between(lane_since_[lane_index], end.time);
      if (action.kind == ActionKind::transfer) {
        report_.busy_periods[lane_index].push_back(
            {std::exchange(period_bytes_[lane_index], 0),
             seconds_between(period_since_[lane_index], end.time),
             is_of_drive(lane) ? drive_shared_ - shared_since_[lane_index] : 0});
      }
    }
    leases_[end.action].clear();
    // On a serial lane the work began when the one before it had ended.
    const auto begin = is_of_drive(lane) ? begin_[end.action]
                                         : std::max(begin_[end.action], lane_last_end_[lane_index]);
    if (action.kind == ActionKind::operation) {
      report_.operation_seconds[action.operation] =
          seconds_between(std::max(could_begin_[end.action], lane_last_end_[lane_index]), end.time);
      report_.operation_ends[action.operation] = seconds_between(start_, end.time);
    }
    lane_last_end_[lane_index] = end.time;
    if (report_.record) {
      report_.record->spans.push_back(
          {end.action, lane, seconds_between(start_, begin), seconds_between(start_, end.time)});
    }
    if (end.error) {
      if (!error_) {
        error_ = end.error;
      }
      return;
    }
    complete(end.action, end.time);
  }

  void complete(uint32_t index, Clock::time_point time) {
    state_[index] = State::done;
    ++done_;
    for (const uint32_t dependent : dependents_[index]) {
      could_begin_[dependent] = std::max(could_begin_[dependent], time);
      if (--open_dependencies_[dependent] == 0) {
        ready_.push(dependent);
      }
    }
  }

  Lane lane_of(const Action& action) const {
    return action.kind == ActionKind::operation ? trace_.operations[action.operation].lane
                                                : transfer_lane(action);
  }

  uint32_t first_open_operation() {
    while (open_operation_ < schedule_.actions.size() &&
           (schedule_.actions[open_operation_].kind != ActionKind::operation ||
            state_[open_operation_] == State::done)) {
      ++open_operation_;
    }
    return open_operation_;
  }

  /// The lane that wall time passing now is charged to; empty: none ("other").
  std::optional<Lane> current_cause() {
    static constexpr Lane kLanes[] = {Lane::nvme_read,      Lane::nvme_write, Lane::host_to_device,
                                      Lane::device_to_host, Lane::compute,    Lane::cpu_optimizer};
    const auto in_lane = [&](Lane lane) { return lane_in_flight_[static_cast<size_t>(lane)] > 0; };
    if (in_lane(Lane::compute)) {
      return Lane::compute;
    }
    if (in_lane(Lane::cpu_optimizer)) {
      return Lane::cpu_optimizer;
    }
    // Nothing works: follow the open dependencies of the next operation to what is in flight.
    uint32_t index = first_open_operation();
    while (index < schedule_.actions.size() && state_[index] == State::waiting) {
      uint32_t next = index;
      for (const uint32_t before : schedule_.actions[index].after) {
        if (state_[before] != State::done) {
          next = before;
        }
        if (state_[before] == State::in_flight) {
          break;
        }
      }
      if (next == index) {
        break;
      }
      index = next;
    }
    if (index < schedule_.actions.size() && state_[index] == State::in_flight) {
      return lane_of(schedule_.actions[index]);
    }
    for (const Lane lane : kLanes) {
      if (in_lane(lane)) {
        return lane;
      }
    }
    return std::nullopt;
  }

  void account(std::optional<Lane> cause, Clock::time_point until) {
    if (until <= accounted_until_) {
      return;
    }
    const double seconds = seconds_between(accounted_until_, until);
    if (report_.record) {
      note_charge(cause, until);
    }
    part_of(report_.split, cause) += seconds;
    accounted_until_ = until;
  }

  void note_charge(std::optional<Lane> lane, Clock::time_point until) {
    auto& charges = report_.record->charges;
    if (charges.empty() || charges.back().lane != lane) {
      charges.push_back({lane, seconds_between(start_, accounted_until_), 0});
    }
    charges.back().end = seconds_between(start_, until);
  }

  void note_level(Tier tier, Clock::time_point time) {
    if (report_.record && tier != Tier::nvme) {
      report_.record->levels.push_back(
          {tier, executor_.store_.used(tier), seconds_between(start_, time)});
    }
  }

  Executor& executor_;
  const Trace& trace_;
  const Schedule& schedule_;
  const OperationBody& body_;
  EndQueue ends_;
  std::vector<uint32_t> open_dependencies_;
  std::vector<std::vector<uint32_t>> dependents_;
  std::vector<State> state_;
  std::vector<Clock::time_point> begin_;
  std::vector<Clock::time_point> could_begin_;  // end of the last dependency
  std::vector<std::vector<tiers::Lease>> leases_;
  std::vector<bool> may_start_;  // operations whose dependencies have ended
  std::deque<uint32_t> lane_operations_[scheduler::kLaneCount];  // in_order, not started
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready_;
  size_t in_flight_ = 0;
  size_t done_ = 0;
  uint32_t open_operation_ = 0;
  int lane_in_flight_[scheduler::kLaneCount] = {};
  Clock::time_point lane_since_[scheduler::kLaneCount] = {};
  Clock::time_point lane_last_end_[scheduler::kLaneCount] = {};
  Clock::time_point period_since_[scheduler::kLaneCount] = {};
  int64_t period_bytes_[scheduler::kLaneCount] = {};
  Clock::time_point drive_noted_;  // up to here is counted:
  double drive_shared_ = 0;        // seconds in which both directions of the drive had transfers
  double shared_since_[scheduler::kLaneCount] = {};  // of these, before the lane's period
  Clock::time_point start_;
  Clock::time_point accounted_until_;
  std::exception_ptr error_;
  RunReport report_;
};

Executor::Executor(tiers::TieredStore& store, device::Stream& compute)
    : store_(store), compute_(compute), cpu_worker_("hr-optimizer") {}

void Executor::on_cpu_worker(const std::function<void()>& call) {
  std::exception_ptr error;
  cpu_worker_.post([&] {
    try {
      call();
    } catch (...) {
      error = std::current_exception();
    }
  });
  cpu_worker_.drain();
  if (error) {
    std::rethrow_exception(error);
  }
}

RunReport Executor::run(const Trace& trace, const Schedule& schedule, const OperationBody& body,
                        bool record) {
  return Run(*this, trace, schedule, body, record).run();
}

}  // namespace headrace::engine
