#include "engine/announced_step.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "scheduler/demand.h"
#include "scheduler/next_use.h"

namespace headrace::engine {

using scheduler::FollowEvent;
using scheduler::Foresight;
using scheduler::Operation;
using scheduler::TracePlace;

namespace {

/// Schedules kept: of each kind of step from its begin, and from usual deviations on.
constexpr size_t kSchedulesKept = 16;

/// Transfers that bring what the first operation uses to where it needs it.
size_t fetches_of_first(const scheduler::Trace& trace, const scheduler::Schedule& schedule) {
  const auto& actions = schedule.actions;
  std::vector<bool> is_needed(actions.size());
  size_t fetches = 0;
  for (size_t i = actions.size(); i-- > 0;) {
    const scheduler::Action& action = actions[i];
    is_needed[i] =
        is_needed[i] || (action.kind == scheduler::ActionKind::operation && action.operation == 0);
    if (!is_needed[i]) {
      continue;
    }
    for (const uint32_t before : action.after) {
      is_needed[before] = true;
    }
    const auto& uses = trace.operations.front().uses;
    const bool is_used = std::any_of(uses.begin(), uses.end(), [&](const scheduler::Use& use) {
      return use.object == action.object;
    });
    if (action.kind == scheduler::ActionKind::transfer && action.to < action.from && is_used) {
      ++fetches;
    }
  }
  return fetches;
}

}  // namespace

AnnouncedStep::AnnouncedStep(Executor& executor, std::vector<scheduler::ObjectFacts> objects,
                             AnnouncedOptions options)
    : executor_(executor),
      store_(executor.store()),
      objects_(std::move(objects)),
      options_(std::move(options)),
      follower_(options_.most_traces),
      residency_(store_, objects_),
      driver_("hr-announced") {
  if (options_.rest_policy == nullptr) {
    options_.rest_policy =
        options_.policy != nullptr
            ? options_.policy
            : std::shared_ptr(scheduler::make_optimal_policy(scheduler::PolicyEffort::quick));
  }
  if (options_.policy == nullptr) {
    options_.policy = scheduler::make_optimal_policy();
  }
}

AnnouncedStep::~AnnouncedStep() = default;

template <class... Args>
void AnnouncedStep::warn(fmt::format_string<Args...> format, Args&&... args) {
  if (options_.warn) {
    options_.warn(fmt::format("announced step {}: ", step_) +
                  fmt::format(format, std::forward<Args>(args)...));
  }
}

void AnnouncedStep::begin() {
  HR_CHECK(!is_in_step_, "announced step {} has not ended", step_);
  is_in_step_ = true;
  ++step_;
  rest_fits_ = true;
  seconds_.clear();
  report_ = {};
  traffic_before_ = store_.traffic();
  residency_.begin_step();
  resident_ = residency_.collect();
  if (const auto place = follower_.begin()) {
    start_rest(*place, false);
  }
}

std::vector<std::span<std::byte>> AnnouncedStep::enter(const Operation& operation) {
  HR_CHECK(is_in_step_ && !is_in_operation_, "enter '{}' {}", operation.name,
           is_in_step_ ? "before the one before it was left" : "outside of a step");
  std::vector<scheduler::Life> lives = residency_.lives();
  if (const auto fault = scheduler::pass_operation(operation, objects_, lives); !fault.empty()) {
    throw InputError(fmt::format("announced step {}: {}", step_, fault));
  }
  const scheduler::FollowStep step = follower_.announce(operation);
  explain(operation, step);
  try {
    serve(operation, step);
    auto bytes = part_->run->enter();
    residency_.note(operation, std::move(lives));
    seconds_.emplace_back();
    ++report_.operations;
    is_in_operation_ = true;
    return bytes;
  } catch (...) {
    abandon();
    throw;
  }
}

void AnnouncedStep::leave(const Completion& end) {
  HR_CHECK(is_in_operation_, "leave without enter in announced step {}", step_);
  is_in_operation_ = false;
  part_->run->leave(end);
}

void AnnouncedStep::run(const Operation& operation, std::function<void(UseBytes)> work) {
  auto bytes = enter(operation);
  const Completion end = executor_.post(operation.lane, std::move(work), std::move(bytes));
  leave(end);
  if (end.is_done()) {
    try {
      end.wait();
    } catch (...) {
      abandon();
      throw;
    }
  }
}

/// Sees to it that the part that runs has the operation next.
void AnnouncedStep::serve(const Operation& operation, const scheduler::FollowStep& step) {
  if (step.event == FollowEvent::follows && part_ && part_->run->remaining() > 0) {
    return;
  }
  settle();
  if (step.event != FollowEvent::follows) {
    rest_fits_ = true;
  }
  if (!step.place || !rest_fits_ || !start_rest(*step.place, true)) {
    start_on_demand(operation);
  }
}

/// Operations of the trace from `place` on that can run on the objects as they are.
size_t AnnouncedStep::possible_operations(const TracePlace& place) const {
  std::vector<scheduler::Life> lives = residency_.lives();
  const auto& operations = follower_.trace(place.trace).operations;
  size_t end = place.position;
  while (end < operations.size() &&
         scheduler::pass_operation(operations[end], objects_, lives).empty()) {
    ++end;
  }
  return end - place.position;
}

scheduler::CompileInput AnnouncedStep::input_of(const scheduler::Trace& trace,
                                                Foresight foresight) const {
  scheduler::CompileInput input;
  input.trace = &trace;
  input.objects = &objects_;
  input.budgets = options_.budgets;
  input.rates = options_.rates;
  input.initial = resident_;
  input.foresight = foresight;
  return input;
}

const AnnouncedStep::Compiled& AnnouncedStep::compile_rest(const TracePlace& place,
                                                           size_t operations) {
  const auto same = std::find_if(compiled_.begin(), compiled_.end(), [&](const Compiled& compiled) {
    return compiled.from == place && compiled.operations == operations &&
           compiled.initial == resident_;
  });
  if (same != compiled_.end()) {
    std::rotate(same, same + 1, compiled_.end());
    return compiled_.back();
  }
  const scheduler::Trace& whole = follower_.trace(place.trace);
  const auto first = whole.operations.begin() + static_cast<ptrdiff_t>(place.position);
  const auto trace = std::make_shared<scheduler::Trace>(
      scheduler::Trace{whole.name, {first, first + static_cast<ptrdiff_t>(operations)}});
  for (Operation& operation : trace->operations) {
    operation.in_order = true;  // as they are announced, whatever they could run before
  }
  const bool is_to_end = place.position + operations == whole.operations.size();
  const scheduler::Policy& policy = place.position == 0 ? *options_.policy : *options_.rest_policy;
  auto schedule = std::make_shared<const scheduler::Schedule>(policy.compile(
      input_of(*trace, is_to_end ? Foresight::expected_rest : Foresight::expected_part)));
  if (compiled_.size() == kSchedulesKept) {
    compiled_.erase(compiled_.begin());
  }
  compiled_.push_back({place, operations, resident_, trace, std::move(schedule)});
  return compiled_.back();
}

/// False where nothing of it can be planned from here. `is_announced`: its first operation is.
bool AnnouncedStep::start_rest(const TracePlace& place, bool is_announced) {
  const size_t operations = possible_operations(place);
  if (operations == 0) {
    return false;
  }
  try {
    const Compiled& compiled = compile_rest(place, operations);
    if (is_announced) {
      report_.demand_fetches += fetches_of_first(*compiled.trace, *compiled.schedule);
    }
    const size_t length = follower_.trace(place.trace).operations.size();
    start(compiled.trace, compiled.schedule, place.position + operations == length);
    return true;
  } catch (const CapacityError& error) {
    rest_fits_ = false;
    warn("the rest of {} does not fit as a whole from here, so objects are fetched on demand: {}",
         describe(place), error.what());
    return false;
  }
}

void AnnouncedStep::start_on_demand(const Operation& operation) {
  const auto trace = std::make_shared<scheduler::Trace>(
      scheduler::Trace{fmt::format("announced step {}", step_), {operation}});
  auto schedule = std::make_shared<const scheduler::Schedule>(
      scheduler::compile_on_demand(input_of(*trace, Foresight::expected_part), next_uses()));
  report_.demand_fetches += fetches_of_first(*trace, *schedule);
  ++report_.on_demand;
  start(trace, std::move(schedule), false);
}

void AnnouncedStep::start(std::shared_ptr<const scheduler::Trace> trace,
                          std::shared_ptr<const scheduler::Schedule> schedule, bool is_to_end) {
  ++report_.parts;
  part_ =
      Part{std::make_unique<AnnouncedRun>(store_, driver_, std::move(trace), std::move(schedule)),
           seconds_.size(), is_to_end};
}

/// By object: in how many operations it is used again if the trace that was left last went on, and
/// then began anew.
std::vector<uint32_t> AnnouncedStep::next_uses() const {
  std::vector<uint32_t> next(objects_.size(), scheduler::NextUse::kNever);
  const auto place = follower_.outlook();
  if (!place) {
    return next;
  }
  const auto& operations = follower_.trace(place->trace).operations;
  for (size_t i = 0; i < operations.size(); ++i) {
    for (const scheduler::Use& use : operations[(place->position + i) % operations.size()].uses) {
      uint32_t& at = next[index_of(use.object)];
      at = std::min(at, static_cast<uint32_t>(i));
    }
  }
  return next;
}

void AnnouncedStep::note(const RunReport& report, size_t first) {
  report_.split += report.split;
  for (size_t i = 0; i < report.operation_seconds.size() && first + i < seconds_.size(); ++i) {
    seconds_[first + i] = report.operation_seconds[i];
  }
}

/// Ends the part that runs where it is, and finds what is resident then.
void AnnouncedStep::settle() {
  if (part_) {
    const std::optional<Part> part = std::exchange(part_, std::nullopt);
    note(part->run->stop(), part->first);
  }
  resident_ = residency_.collect();
}

/// After an error: nothing is expected any more, and nothing runs.
void AnnouncedStep::abandon() {
  follower_.give_up();
  part_.reset();
  resident_ = residency_.collect();
}

AnnouncedReport AnnouncedStep::end() {
  HR_CHECK(is_in_step_ && !is_in_operation_, "announced step {} ends {}", step_,
           is_in_step_ ? "within an operation" : "a second time");
  std::exception_ptr error;
  try {
    if (part_ && part_->is_to_end && part_->run->remaining() == 0) {
      note(part_->run->finish(), part_->first);
    }
    settle();
  } catch (...) {
    error = std::current_exception();
    abandon();
  }
  is_in_step_ = false;
  remember();
  residency_.end_step();
  resident_ = residency_.collect();
  try {
    bring_home();
  } catch (...) {
    error = error ? error : std::current_exception();
  }
  report_.traffic = store_.traffic();
  report_.traffic -= traffic_before_;
  if (error) {
    std::rethrow_exception(error);
  }
  return report_;
}

/// Changed values that are not at home: as a schedule does at its end, with no operation before.
void AnnouncedStep::bring_home() {
  if (std::none_of(resident_.begin(), resident_.end(),
                   [](const scheduler::Residency& copy) { return copy.dirty; })) {
    return;
  }
  const scheduler::Trace nothing{fmt::format("end of announced step {}", step_), {}};
  const scheduler::Schedule schedule =
      scheduler::make_lru_policy()->compile(input_of(nothing, Foresight::expected_rest));
  ++report_.parts;
  note(executor_.run(nothing, schedule, [](uint32_t, UseBytes) {}), seconds_.size());
}

void AnnouncedStep::remember() {
  const scheduler::FollowEnd end = follower_.end(seconds_);
  report_.is_remembered = end.trace.has_value();
  if (end.ended_before) {
    warn("it ended after {} operations, where {} was expected", report_.operations,
         describe(*end.ended_before));
  }
  if (end.forgotten) {
    forget_schedules(*end.forgotten);
    warn("an earlier step is forgotten, for {} are remembered", follower_.remembered());
  }
  if (end.has_new_seconds) {
    forget_schedules(*end.trace);
  }
}

void AnnouncedStep::forget_schedules(uint64_t trace) {
  std::erase_if(compiled_, [&](const Compiled& compiled) { return compiled.from.trace == trace; });
}

TraceMode AnnouncedStep::mode() const {
  if (follower_.expected()) {
    return TraceMode::complete;
  }
  return follower_.has_diverged() ? TraceMode::invalid : TraceMode::record;
}

std::string AnnouncedStep::describe(const TracePlace& place) const {
  const scheduler::Trace& trace = follower_.trace(place.trace);
  if (place.position == trace.operations.size()) {
    return fmt::format("the end of '{}'", trace.name);
  }
  return fmt::format("operation '{}' (number {} of '{}')", trace.operations[place.position].name,
                     place.position, trace.name);
}

void AnnouncedStep::explain(const Operation& operation, const scheduler::FollowStep& step) {
  if (step.instead_of) {
    ++report_.deviations;
    warn("operation '{}' (number {}) came instead of {}", operation.name,
         follower_.operations() - 1, describe(*step.instead_of));
  }
  if (step.event == FollowEvent::switched) {
    warn("another step began like this: it goes on from {}", describe(*step.place));
  } else if (step.event == FollowEvent::rejoined) {
    warn("it goes on from {}", describe(*step.place));
  } else if (step.event == FollowEvent::lost && step.instead_of) {
    warn("objects are fetched on demand until operations come as in a step before");
  }
}

}  // namespace headrace::engine
