#include "engine/run_account.h"

#include <algorithm>
#include <utility>

#include "base/seconds.h"

namespace headrace::engine {

using scheduler::Lane;

RunAccount::RunAccount(const tiers::TieredStore& store, size_t operations, bool record)
    : store_(store) {
  if (record) {
    report_.record.emplace();
  }
  report_.operation_seconds.resize(operations);
  report_.operation_ends.resize(operations);
}

double RunAccount::since_start(Clock::time_point time) const {
  return seconds_between(start_, time);
}

RunAccount::Clock::time_point RunAccount::start() {
  start_ = Clock::now();
  accounted_until_ = start_;
  if (report_.record) {
    report_.record->start = start_;
    note_level(Tier::device, start_);
    note_level(Tier::host, start_);
  }
  return start_;
}

void RunAccount::note_level(Tier tier, Clock::time_point time) {
  if (report_.record && tier != Tier::nvme) {
    report_.record->levels.push_back({tier, store_.used(tier), since_start(time)});
  }
}

void RunAccount::launched(const Work& work) {
  note_drive(work.begin);
  LaneState& lane = lanes_[index(work.lane)];
  if (lane.in_flight++ == 0) {
    lane.since = work.begin;
    lane.period_since = std::max(work.could_begin, lane.last_end);
    lane.shared_before = drive_shared_;
  }
}

void RunAccount::note_drive(Clock::time_point now) {
  if (is_busy(Lane::nvme_read) && is_busy(Lane::nvme_write)) {
    drive_shared_ += std::max(0.0, seconds_between(drive_noted_, now));
  }
  drive_noted_ = std::max(drive_noted_, now);
}

void RunAccount::ended(const Work& work, Clock::time_point end) {
  const bool is_of_drive = work.lane == Lane::nvme_read || work.lane == Lane::nvme_write;
  note_drive(end);
  LaneState& lane = lanes_[index(work.lane)];
  lane.period_bytes += work.moved.count();
  // On a serial lane the work began when the one before it had ended, and what it was posted
  // behind.
  const auto begin =
      is_of_drive ? work.begin : std::max({work.begin, work.could_begin, lane.last_end});
  --lane.in_flight;
  if (!is_of_drive) {
    report_.busy[index(work.lane)] += seconds_between(begin, end);
  } else if (lane.in_flight == 0) {
    report_.busy[index(work.lane)] += seconds_between(lane.since, end);
  }
  if (lane.in_flight == 0 && !work.operation) {
    report_.busy_periods[index(work.lane)].push_back(
        {std::exchange(lane.period_bytes, 0), seconds_between(lane.period_since, end),
         is_of_drive ? drive_shared_ - lane.shared_before : 0});
  }
  if (work.operation) {
    report_.operation_seconds[*work.operation] =
        seconds_between(std::max(work.could_begin, lane.last_end), end);
    report_.operation_ends[*work.operation] = since_start(end);
  }
  lane.last_end = end;
  if (report_.record) {
    report_.record->spans.push_back({work.action, work.lane, since_start(begin), since_start(end)});
  }
}

void RunAccount::charge(std::optional<Lane> lane, Clock::time_point until) {
  if (until <= accounted_until_) {
    return;
  }
  if (report_.record) {
    auto& charges = report_.record->charges;
    if (charges.empty() || charges.back().lane != lane) {
      charges.push_back({lane, since_start(accounted_until_), 0});
    }
    charges.back().end = since_start(until);
  }
  part_of(report_.split, lane) += seconds_between(accounted_until_, until);
  accounted_until_ = until;
}

RunReport RunAccount::finish() {
  charge(std::nullopt, Clock::now());
  report_.split.total = since_start(accounted_until_);
  return std::move(report_);
}

std::optional<Lane> RunAccount::busy_lane() const {
  for (const Lane lane : {Lane::nvme_read, Lane::nvme_write, Lane::host_to_device,
                          Lane::device_to_host, Lane::compute, Lane::cpu_optimizer}) {
    if (is_busy(lane)) {
      return lane;
    }
  }
  return std::nullopt;
}

}  // namespace headrace::engine
