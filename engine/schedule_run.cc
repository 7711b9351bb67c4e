#include "engine/schedule_run.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/costs.h"

namespace headrace::engine {

using scheduler::Action;
using scheduler::ActionKind;
using scheduler::Lane;
using scheduler::Schedule;
using scheduler::Trace;
using scheduler::transfer_lane;

namespace {

/// Operations that are posted while one runs. Few: each holds its objects, and a device's own queue
/// of launches must not fill up, for then posting blocks the thread that starts the transfers.
constexpr size_t kPostedAhead = 2;

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

void RunEvents::push(Kind kind, uint32_t action, std::exception_ptr error) {
  // Notified under the lock: the run may end as soon as it has the last event.
  const std::lock_guard lock(mutex_);
  has_failure_ = has_failure_ || error != nullptr;
  events_.push_back({kind, action, std::chrono::steady_clock::now(), std::move(error)});
  changed_.notify_one();
}

std::vector<RunEvents::Event> RunEvents::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !events_.empty(); });
  return std::exchange(events_, {});
}

bool RunEvents::has_failure() const {
  const std::lock_guard lock(mutex_);
  return has_failure_;
}

ScheduleRun::ScheduleRun(tiers::TieredStore& store, const Trace& trace, const Schedule& schedule,
                         Start start, OperationStart when, bool record)
    : store_(store),
      trace_(trace),
      schedule_(schedule),
      start_(std::move(start)),
      when_(when),
      account_(store, trace.operations.size(), record) {
  const size_t count = schedule.actions.size();
  open_dependencies_.resize(count);
  dependents_.resize(count);
  state_.resize(count, State::waiting);
  begin_.resize(count);
  could_begin_.resize(count);
  leases_.resize(count);
  may_start_.resize(count, false);
  open_before_.resize(count);
  action_of_.resize(trace.operations.size());
  for (uint32_t i = 0; i < count; ++i) {
    const Action& action = schedule.actions[i];
    open_dependencies_[i] = static_cast<uint32_t>(action.after.size());
    for (const uint32_t before : action.after) {
      HR_CHECK(before < i, "action {} depends on later action {}", i, before);
      dependents_[before].push_back(i);
    }
    if (action.kind == ActionKind::operation) {
      action_of_.at(action.operation) = i;
      // Its announcement is one more thing to wait for.
      open_dependencies_[i] += when_ == OperationStart::when_announced ? 1 : 0;
    }
    if (is_in_order(action)) {
      lane_operations_[static_cast<size_t>(lane_of(action))].push_back(i);
    }
    if (open_dependencies_[i] == 0) {
      ready_.push(i);
    }
  }
}

RunReport ScheduleRun::run() {
  std::fill(could_begin_.begin(), could_begin_.end(), account_.start());
  start_ready();
  while (!is_over()) {
    std::optional<Lane> cause = current_cause();
    for (const RunEvents::Event& event : events_.wait()) {
      account_.charge(cause, event.time);
      take(event);
      cause = current_cause();
    }
    start_ready();
  }
  RunReport report = account_.finish();
  if (error_) {
    std::rethrow_exception(error_);
  }
  HR_CHECK(is_stopped_ || done_ == schedule_.actions.size(),
           "schedule of '{}' stalled: {} of {} actions ran", trace_.name, done_,
           schedule_.actions.size());
  return report;
}

/// Nothing is in flight, and nothing that could start is waited for.
bool ScheduleRun::is_over() const {
  const bool waits_for_announcement = when_ == OperationStart::when_announced &&
                                      started_ == announced_ &&
                                      announced_ < trace_.operations.size();
  return in_flight_ == 0 && (!waits_for_announcement || is_stopped_ || error_ != nullptr);
}

void ScheduleRun::take(const RunEvents::Event& event) {
  switch (event.kind) {
    case RunEvents::Kind::ended:
      finish(event);
      return;
    case RunEvents::Kind::announced:
      take_announcement(event.time);
      return;
    case RunEvents::Kind::stop:
      is_stopped_ = true;
      return;
  }
}

void ScheduleRun::take_announcement(Clock::time_point time) {
  const uint32_t index = action_of_.at(announced_++);
  could_begin_[index] = std::max(could_begin_[index], time);
  release_dependency(index);
}

void ScheduleRun::release_dependency(uint32_t index) {
  if (--open_dependencies_[index] == 0) {
    ready_.push(index);
  }
}

void ScheduleRun::start_ready() {
  // An operation that has failed while it was posted has left its values unwritten.
  while (!ready_.empty() && !error_ && !is_stopped_ && !events_.has_failure()) {
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

void ScheduleRun::start(uint32_t index) {
  const Action& action = schedule_.actions[index];
  switch (action.kind) {
    case ActionKind::place:
      store_.place(action.object, action.from, action.offset);
      account_.note_level(action.from, Clock::now());
      complete(index, could_begin_[index]);
      return;
    case ActionKind::drop:
      store_.drop(action.object, action.from);
      account_.note_level(action.from, Clock::now());
      complete(index, could_begin_[index]);
      return;
    case ActionKind::transfer:
      start_transfer(index);
      return;
    case ActionKind::operation:
      if (is_in_order(action)) {
        start_in_order(index);
      } else {
        start_operation(index);
      }
      return;
  }
}

void ScheduleRun::start_transfer(uint32_t index) {
  const Action& action = schedule_.actions[index];
  const auto begin = Clock::now();
  const Completion end =
      store_.transfer(action.object, action.from, action.to, action.offset, io_class(index));
  account_.note_level(action.to, begin);
  launch(index, begin);
  release_behind(index);
  end.on_done([this, index](std::exception_ptr error) {
    events_.push(RunEvents::Kind::ended, index, std::move(error));
  });
}

bool ScheduleRun::is_in_order(const Action& action) const {
  return action.kind == ActionKind::operation && trace_.operations[action.operation].in_order;
}

/// One stream runs all that are, in the order in which they are posted.
bool ScheduleRun::is_streamed(uint32_t index) const {
  const Action& action = schedule_.actions[index];
  return when_ == OperationStart::when_ready && action.kind == ActionKind::operation &&
         lane_of(action) == Lane::compute;
}

/// Posted once what it waits for is in the stream, or in one that its stream waits for.
bool ScheduleRun::is_posted_ahead(uint32_t index) const {
  return is_streamed(index) && is_in_order(schedule_.actions[index]);
}

/// Whether `copy` brings to the device what the operation uses there.
bool ScheduleRun::brings(uint32_t copy, uint32_t operation) const {
  const Action& action = schedule_.actions[copy];
  const auto& uses = trace_.operations[schedule_.actions[operation].operation].uses;
  return action.kind == ActionKind::transfer && action.from == Tier::host &&
         action.to == Tier::device &&
         std::any_of(uses.begin(), uses.end(), [&](const scheduler::Use& use) {
           return use.object == action.object && use.tier == Tier::device;
         });
}

/// Whether the stream of `dependent` sees to it that it runs after `index`, once that is posted.
bool ScheduleRun::is_behind(uint32_t index, uint32_t dependent) const {
  return is_posted_ahead(dependent) && (is_posted_ahead(index) || brings(index, dependent));
}

/// The action is posted: so may be what its stream, or one that waits for it, runs after it.
void ScheduleRun::release_behind(uint32_t index) {
  for (const uint32_t dependent : dependents_[index]) {
    if (is_behind(index, dependent)) {
      ++open_before_[dependent];
      release_dependency(dependent);
    }
  }
}

/// The action has ended, well or not.
void ScheduleRun::note_end_to_behind(uint32_t index) {
  for (const uint32_t dependent : dependents_[index]) {
    if (is_behind(index, dependent)) {
      --open_before_[dependent];
    }
  }
}

void ScheduleRun::start_in_order(uint32_t ready) {
  may_start_[ready] = true;
  auto& queue = lane_operations_[static_cast<size_t>(lane_of(schedule_.actions[ready]))];
  while (!queue.empty() && may_start_[queue.front()] &&
         (!is_posted_ahead(queue.front()) || posted_.size() <= kPostedAhead)) {
    const uint32_t next = queue.front();
    queue.pop_front();
    start_operation(next);
  }
}

void ScheduleRun::start_operation(uint32_t index) {
  const uint32_t number = schedule_.actions[index].operation;
  auto& leases = leases_[index];
  PinnedUses pinned;
  const auto order =
      is_posted_ahead(index) ? tiers::LeaseOrder::in_stream : tiers::LeaseOrder::alone;
  for (const scheduler::Use& use : trace_.operations.at(number).uses) {
    leases.push_back(store_.acquire(use.object, use.tier, lease_mode(use.access), order));
    pinned.bytes.push_back(leases.back().bytes());
    if (const device::EventRef& behind = leases.back().behind()) {
      pinned.behind.push_back(behind);
    }
  }
  launch(index, Clock::now());
  ++started_;
  start_(number, std::move(pinned), [this, index](std::exception_ptr error) {
    events_.push(RunEvents::Kind::ended, index, std::move(error));
  });
  if (is_streamed(index)) {
    posted_.push_back(index);
  }
  release_behind(index);
}

/// A read is a demand read when every earlier operation has ended: something waits for it now.
aio::IoClass ScheduleRun::io_class(uint32_t index) {
  if (schedule_.actions[index].to == Tier::nvme) {
    return aio::IoClass::write_back;
  }
  return first_open_operation() > index ? aio::IoClass::demand : aio::IoClass::prefetch;
}

RunAccount::Work ScheduleRun::work_of(uint32_t index) const {
  const Action& action = schedule_.actions[index];
  RunAccount::Work work;
  work.action = index;
  work.lane = lane_of(action);
  if (action.kind == ActionKind::operation) {
    work.operation = action.operation;
  } else {
    work.moved = store_.spec(action.object).size;
  }
  work.could_begin = could_begin_[index];
  work.begin = begin_[index];
  return work;
}

void ScheduleRun::launch(uint32_t index, Clock::time_point begin) {
  state_[index] = State::in_flight;
  begin_[index] = begin;
  ++in_flight_;
  account_.launched(work_of(index));
}

void ScheduleRun::finish(const RunEvents::Event& end) {
  if (is_streamed(end.action)) {
    stream_ends_.emplace(end.action, end);
  } else {
    note_end(end);
  }
  finish_in_stream();
}

/// The ends of what is in the stream are noted in its order and after those of the copies that it
/// was posted behind, though those may be told later: the store and the account know nothing of
/// streams.
void ScheduleRun::finish_in_stream() {
  while (!posted_.empty() && open_before_[posted_.front()] == 0) {
    const auto end = stream_ends_.find(posted_.front());
    if (end == stream_ends_.end()) {
      return;
    }
    posted_.pop_front();
    stream_end_ = std::max({end->second.time, could_begin_[end->first], stream_end_});
    end->second.time = stream_end_;
    note_end(end->second);
    stream_ends_.erase(end);
    const auto& queue = lane_operations_[static_cast<size_t>(Lane::compute)];
    if (!queue.empty() && may_start_[queue.front()]) {
      ready_.push(queue.front());
    }
  }
}

void ScheduleRun::note_end(const RunEvents::Event& end) {
  --in_flight_;
  account_.ended(work_of(end.action), end.time);
  leases_[end.action].clear();
  note_end_to_behind(end.action);
  if (end.error) {
    if (!error_) {
      error_ = end.error;
    }
    return;
  }
  complete(end.action, end.time);
}

void ScheduleRun::complete(uint32_t index, Clock::time_point time) {
  state_[index] = State::done;
  ++done_;
  for (const uint32_t dependent : dependents_[index]) {
    could_begin_[dependent] = std::max(could_begin_[dependent], time);
    if (!is_behind(index, dependent)) {  // else released when it was posted
      release_dependency(dependent);
    }
  }
}

Lane ScheduleRun::lane_of(const Action& action) const {
  return action.kind == ActionKind::operation ? trace_.operations[action.operation].lane
                                              : transfer_lane(action.from, action.to);
}

uint32_t ScheduleRun::first_open_operation() {
  while (open_operation_ < schedule_.actions.size() &&
         (schedule_.actions[open_operation_].kind != ActionKind::operation ||
          state_[open_operation_] == State::done)) {
    ++open_operation_;
  }
  return open_operation_;
}

/// Whether the compute lane has work that waits for no copy.
bool ScheduleRun::computes() const {
  return account_.is_busy(Lane::compute) && (posted_.empty() || open_before_[posted_.front()] == 0);
}

/// The lane that wall time passing now is charged to; empty: none ("other").
std::optional<Lane> ScheduleRun::current_cause() {
  if (computes()) {
    return Lane::compute;
  }
  if (account_.is_busy(Lane::cpu_optimizer)) {
    return Lane::cpu_optimizer;
  }
  if (when_ == OperationStart::when_announced && started_ == announced_ &&
      announced_ < trace_.operations.size()) {
    return std::nullopt;  // it is for the other side to announce the next operation
  }
  // Nothing works: follow the open dependencies of the next operation to what is in flight.
  uint32_t index = first_open_operation();
  while (index < schedule_.actions.size() &&
         (state_[index] == State::waiting || open_before_[index] > 0)) {
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
  return account_.busy_lane();
}

}  // namespace headrace::engine
