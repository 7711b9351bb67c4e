#include "scheduler/plan_builder.h"

#include <algorithm>

#include "scheduler/costs.h"
#include "scheduler/placement.h"

namespace headrace::scheduler {

PlanBuilder::PlanBuilder(const CompileInput& input)
    : input_(input), dependencies_(input.objects->size()), idle_from_(input.objects->size()) {}

int64_t PlanBuilder::slot_end(ObjectId object, int64_t offset) const {
  return offset + slot_bytes((*input_.objects)[index_of(object)], input_.budgets.alignment);
}

double PlanBuilder::append(Action action, double ready) {
  action.after = dependencies_.finish();
  double time = ready;
  for (const uint32_t before : action.after) {
    time = std::max(time, ends_[before]);
  }
  // A rough clock, on the careful side: latencies are not overlapped.
  if (const auto lane = lane_of(input_, action)) {
    double& lane_free = lane_free_[static_cast<size_t>(*lane)];
    time =
        std::max(time, lane_free) + occupancy_of(input_, action) + latency_of(input_.rates, *lane);
    lane_free = time;
  }
  ends_.push_back(time);
  schedule_.actions.push_back(std::move(action));
  return time;
}

void PlanBuilder::touched(ObjectId object, Tier tier, double end) {
  double& idle_from = idle_from_[index_of(object)][static_cast<size_t>(tier)];
  idle_from = std::max(idle_from, end);
}

void PlanBuilder::note_slot(ObjectId object, Tier tier, int64_t offset) {
  if (tier == Tier::nvme) {
    return;
  }
  Bytes& peak = tier == Tier::device ? schedule_.peak_device : schedule_.peak_host;
  peak = std::max(peak, Bytes(slot_end(object, offset)));
}

void PlanBuilder::count_bytes(ObjectId object, Tier from, Tier to) {
  const Bytes size = (*input_.objects)[index_of(object)].size;
  if (is_direct(from, to)) {
    schedule_.host_to_device += size;
    schedule_.direct += size;
  }
  switch (transfer_lane(from, to)) {
    case Lane::nvme_read:
      schedule_.nvme_read += size;
      break;
    case Lane::nvme_write:
      schedule_.nvme_write += size;
      break;
    case Lane::host_to_device:
      schedule_.host_to_device += size;
      break;
    default:
      schedule_.device_to_host += size;
      break;
  }
}

void PlanBuilder::transfer(ObjectId object, Tier from, Tier to, int64_t offset, bool new_slot,
                           double ready) {
  dependencies_.begin(static_cast<uint32_t>(ends_.size()));
  dependencies_.reads(object, from);
  dependencies_.overwrites(object, to);
  if (to != Tier::nvme && new_slot) {
    dependencies_.fills(to, offset, slot_end(object, offset));
  }
  Action action;
  action.kind = ActionKind::transfer;
  action.object = object;
  action.from = from;
  action.to = to;
  action.offset = to == Tier::nvme ? 0 : offset;
  const double end = append(std::move(action), new_slot ? ready : 0);
  touched(object, from, end);
  touched(object, to, end);
  note_slot(object, to, offset);
  count_bytes(object, from, to);
}

double PlanBuilder::drop(ObjectId object, Tier tier, int64_t offset) {
  dependencies_.begin(static_cast<uint32_t>(ends_.size()));
  dependencies_.overwrites(object, tier);
  if (tier != Tier::nvme) {
    dependencies_.frees(tier, offset, slot_end(object, offset));
  }
  Action action;
  action.kind = ActionKind::drop;
  action.object = object;
  action.from = tier;
  action.to = tier;
  action.offset = tier == Tier::nvme ? 0 : offset;
  const double end = append(std::move(action));
  touched(object, tier, end);
  return end;
}

void PlanBuilder::place(ObjectId object, Tier tier, int64_t offset, double ready) {
  dependencies_.begin(static_cast<uint32_t>(ends_.size()));
  dependencies_.overwrites(object, tier);
  dependencies_.fills(tier, offset, slot_end(object, offset));
  Action action;
  action.kind = ActionKind::place;
  action.object = object;
  action.from = tier;
  action.to = tier;
  action.offset = offset;
  touched(object, tier, append(std::move(action), ready));
  note_slot(object, tier, offset);
}

void PlanBuilder::operation(uint32_t index) {
  const Operation& operation = input_.trace->operations[index];
  dependencies_.begin(static_cast<uint32_t>(ends_.size()));
  for (const Use& use : operation.uses) {
    if (writes(use.access)) {
      dependencies_.changes(use.object);
    } else {
      dependencies_.reads(use.object, use.tier);
    }
  }
  Action action;
  action.kind = ActionKind::operation;
  action.operation = index;
  const double end = append(std::move(action));
  for (const Use& use : operation.uses) {
    touched(use.object, use.tier, end);
  }
}

Schedule PlanBuilder::finish() {
  return std::move(schedule_);
}

}  // namespace headrace::scheduler
