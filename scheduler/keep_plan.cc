#include "scheduler/keep_plan.h"

#include <algorithm>

namespace headrace::scheduler {

namespace {

Trace two_rounds(const Trace& trace) {
  Trace result;
  result.operations.reserve(2 * trace.operations.size());
  for (int round = 0; round < 2; ++round) {
    for (const Operation& operation : trace.operations) {
      Operation& copy = result.operations.emplace_back();
      copy.lane = operation.lane;
      copy.uses = operation.uses;
    }
  }
  return result;
}

/// What the first round leaves at home.
void end_first_round(const CompileInput& input, int64_t operations, std::vector<ValueLife>& lives) {
  for (size_t i = 0; i < lives.size(); ++i) {
    ValueLife& life = lives[i];
    const bool is_last =
        life.born < operations && (i + 1 == lives.size() || lives[i + 1].object != life.object ||
                                   lives[i + 1].born >= operations);
    const auto& home = (*input.objects)[index_of(life.object)].home;
    if (is_last && home) {
      life.goes_home = !life.in[static_cast<size_t>(*home)];
    }
  }
}

}  // namespace

KeepPlan::KeepPlan(const CompileInput& input, double usable, int64_t most_steps)
    : positions_(input.objects->size()), usable_(usable) {
  for (uint32_t i = 0; i < input.trace->operations.size(); ++i) {
    for (const Use& use : input.trace->operations[i].uses) {
      positions_[index_of(use.object)].push_back(i);
    }
  }
  size_t count = 0;
  for (const auto& positions : positions_) {
    first_.push_back(static_cast<uint32_t>(count));
    count += positions.size() + 1;
  }
  on_device_.assign(count, 1);
  in_host_.assign(count, 1);
  const Trace trace = two_rounds(*input.trace);
  CompileInput doubled = input;
  doubled.trace = &trace;
  std::vector<ValueLife> lives = value_lives(doubled);
  end_first_round(input, static_cast<int64_t>(input.trace->operations.size()), lives);
  if (input.budgets.device.count() > 0) {
    const BoundaryBound link(doubled, lives, Boundary::link);
    solve(link.stays(), link.room(), most_steps, on_device_);
  }
  const BoundaryBound drive(doubled, lives, Boundary::drive);
  std::vector<Stay> stays = drive.stays();
  for (Stay& stay : stays) {
    // What stays on the device does not need the host.
    float on_device = 0;
    if (input.budgets.device.count() > 0 && stay.life->in[0]) {
      for_each_share(stay, [&](size_t at) { on_device = on_device_[at]; });
    }
    stay.interval.bytes = static_cast<int64_t>(static_cast<double>(stay.interval.bytes) *
                                               (1 - static_cast<double>(on_device)));
  }
  solve(stays, drive.host_room(), most_steps, in_host_);
}

/// The entries of the shares that stand for a stretch of the first round: uses that are over while
/// the copy stays are all up to the one it stays from, and more until the one that needs it.
template <class Visit>
void KeepPlan::for_each_share(const Stay& stay, const Visit& visit) const {
  const uint32_t object = index_of(stay.life->object);
  const auto& positions = positions_[object];
  const auto over = std::upper_bound(positions.begin(), positions.end(), stay.from,
                                     [](int64_t from, uint32_t p) { return from < p; });
  const auto until = std::lower_bound(positions.begin(), positions.end(), stay.to,
                                      [](uint32_t p, int64_t to) { return p < to; });
  if (over == positions.end() && stay.from > static_cast<int64_t>(positions.back())) {
    return;  // the second round
  }
  for (auto uses = over - positions.begin(); uses <= until - positions.begin(); ++uses) {
    visit(first_[object] + static_cast<size_t>(uses));
  }
}

void KeepPlan::solve(const std::vector<Stay>& stays, std::vector<int64_t> room, int64_t most_steps,
                     std::vector<float>& shares) {
  std::vector<StayInterval> intervals;
  intervals.reserve(stays.size());
  for (const Stay& stay : stays) {
    intervals.push_back(stay.interval);
  }
  for (int64_t& bytes : room) {
    bytes = static_cast<int64_t>(static_cast<double>(bytes) * usable_);
  }
  const auto let_go = least_cost_let_go(intervals, room, most_steps);
  if (!let_go) {
    complete_ = false;
    return;
  }
  for (size_t i = 0; i < stays.size(); ++i) {
    const float share = 1 - static_cast<float>(let_go->bytes[i]) /
                                static_cast<float>(std::max<int64_t>(1, intervals[i].bytes));
    for_each_share(stays[i], [&](size_t at) { shares[at] = share; });
  }
}

}  // namespace headrace::scheduler
