#include "engine/timeline.h"

#include <algorithm>
#include <utility>

#include "base/seconds.h"
#include "scheduler/costs.h"

namespace headrace::engine {

using scheduler::Lane;

TimeSplit StepTimeline::split() const {
  TimeSplit split;
  for (const Charge& charge : charges) {
    part_of(split, charge.lane) += charge.end - charge.begin;
    split.total += charge.end - charge.begin;
  }
  return split;
}

TimelineRecorder::TimelineRecorder(int64_t step, std::chrono::steady_clock::time_point begin) {
  timeline_.step = step;
  timeline_.begin = begin;
}

void TimelineRecorder::add_run(const RunRecord& record, const scheduler::Trace& trace,
                               const scheduler::Schedule& schedule,
                               const std::vector<scheduler::ObjectFacts>& objects) {
  const double offset = seconds_between(timeline_.begin, record.start);
  for (const scheduler::Span& span : record.spans) {
    const scheduler::Action& action = schedule.actions[span.action];
    StepTimeline::Event& event = timeline_.events.emplace_back();
    if (action.kind == scheduler::ActionKind::operation) {
      event.name = trace.operations[action.operation].name;
    } else {
      event.name = objects[index_of(action.object)].name;
      event.name += scheduler::is_direct(action.from, action.to) ? " to the device" : "";
      event.bytes = objects[index_of(action.object)].size;
    }
    event.lane = span.lane;
    event.begin = offset + span.begin;
    event.end = offset + span.end;
  }
  for (const Charge& part : record.charges) {
    charge(part.lane, offset + part.begin, offset + part.end);
  }
  for (const ArenaLevel& level : record.levels) {
    timeline_.levels.push_back({level.tier, level.used, offset + level.time});
  }
}

void TimelineRecorder::add_commit(std::chrono::steady_clock::time_point begin,
                                  std::chrono::steady_clock::time_point end) {
  const double from = seconds_between(timeline_.begin, begin);
  const double to = seconds_between(timeline_.begin, end);
  // Synchronous: nothing is in flight beside it.
  timeline_.events.push_back({"commit", Lane::nvme_write, Bytes(0), from, to});
  charge(Lane::nvme_write, from, to);
}

StepTimeline TimelineRecorder::finish(double seconds) && {
  charge(std::nullopt, seconds, seconds);
  timeline_.seconds = seconds;
  return std::move(timeline_);
}

/// What lies between this and the last charge is "other".
void TimelineRecorder::charge(std::optional<Lane> lane, double begin, double end) {
  auto& charges = timeline_.charges;
  const double accounted = charges.empty() ? 0 : charges.back().end;
  if (begin > accounted) {
    charges.push_back({std::nullopt, accounted, begin});
  }
  if (end > begin) {
    charges.push_back({lane, begin, end});
  }
}

}  // namespace headrace::engine
