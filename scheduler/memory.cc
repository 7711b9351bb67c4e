#include "scheduler/memory.h"

#include <algorithm>

#include "base/check.h"
#include "scheduler/byte_pool.h"
#include "scheduler/costs.h"
#include "scheduler/placement.h"
#include "scheduler/slots.h"

namespace headrace::scheduler {

namespace {

std::unique_ptr<Arena> make_arena(Bytes capacity, bool has_addresses) {
  if (has_addresses) {
    return std::make_unique<SlotMap>(capacity.count());
  }
  return std::make_unique<BytePool>(capacity.count());
}

}  // namespace

Memory::Memory(const CompileInput& input, const Footprint& footprint, const VictimModel& model,
               NextUse& next_use, PlanBuilder& plan, const ArenaModel& arenas)
    : input_(input),
      footprint_(footprint),
      model_(model),
      next_use_(next_use),
      plan_(plan),
      slots_{make_arena(input.budgets.device, arenas.has_addresses),
             make_arena(input.budgets.host, arenas.has_addresses)},
      places_(arenas.places),
      copies_(input.objects->size()) {
  for (const ObjectFacts& object : *input.objects) {
    sizes_.push_back(slot_bytes(object, input.budgets.alignment));
  }
  load_initial();
}

void Memory::load_initial() {
  for (uint32_t o = 0; o < copies_.size(); ++o) {
    const auto& home = (*input_.objects)[o].home;
    if (home) {
      copy(ObjectId{o}, *home).valid = true;
    }
  }
  int64_t rank = 1;  // the list is ordered by last use
  for (const Residency& residency : input_.initial) {
    Copy& resident = copy(residency.object, residency.tier);
    if (residency.tier == Tier::nvme) {
      resident.valid = true;
      continue;
    }
    resident = {residency.offset, true, rank++};
    slots(residency.tier)
        .occupy(residency.offset, size(residency.object),
                static_cast<int32_t>(index_of(residency.object)));
    if (anchor_of(facts(residency.object)) == residency.tier) {
      pin(residency.object, residency.tier);
    }
    plan_.note_slot(residency.object, residency.tier, residency.offset);
  }
  for (const Residency& residency : input_.initial) {
    const auto& home = facts(residency.object).home;
    if (residency.dirty && home) {
      copy(residency.object, *home).valid = false;
    }
  }
  for (const Residency& residency : input_.initial) {
    rescore(residency.object);
  }
}

void Memory::begin_operation(uint32_t position) {
  position_ = position;
  if (position < input_.trace->operations.size()) {
    deadline_ = plan_.lane_free(input_.trace->operations[position].lane);
  }
}

void Memory::pin(ObjectId object, Tier tier) {
  slots(tier).pin(copy(object, tier).slot);
}
void Memory::unpin(ObjectId object, Tier tier) {
  slots(tier).unpin(copy(object, tier).slot);
}

bool Memory::is_only_copy(ObjectId object, Tier tier) const {
  const auto& copies = copies_[index_of(object)];
  for (size_t t = 0; t < copies.size(); ++t) {
    if (t != static_cast<size_t>(tier) && copies[t].valid) {
      return false;
    }
  }
  return copies[static_cast<size_t>(tier)].valid;
}

double Memory::seconds(ObjectId object, Tier from, Tier to) const {
  return transfer_seconds(input_.rates, facts(object).size, from, to);
}

StallModel Memory::arrival(ObjectId object, Tier tier) const {
  StallModel model;
  model.deadline = deadline_;
  if (tier == Tier::device) {
    if (!next_use_.value_is_needed(object)) {
      return model;
    }
    model.transfer_seconds = seconds(object, Tier::host, Tier::device);
    model.lane_free = plan_.lane_free(Lane::host_to_device);
    if (!is_valid(object, Tier::host)) {
      model.lane_free = std::max(model.lane_free, plan_.lane_free(Lane::nvme_read) +
                                                      seconds(object, Tier::nvme, Tier::host));
    }
    return model;
  }
  if (is_valid(object, Tier::device)) {
    model.lane_free = plan_.lane_free(Lane::device_to_host);
    model.transfer_seconds = seconds(object, Tier::device, Tier::host);
  } else if (is_valid(object, Tier::nvme)) {
    model.lane_free = plan_.lane_free(Lane::nvme_read);
    model.transfer_seconds = seconds(object, Tier::nvme, Tier::host);
  }
  return model;
}

std::optional<Room> Memory::planned_room(ObjectId object, Tier tier) const {
  const auto offset =
      places_ != nullptr ? places_->offset_of(object, tier, position_) : std::nullopt;
  return offset ? slots(tier).room_at(*offset, size(object)) : std::nullopt;
}

std::optional<Room> Memory::find_room(ObjectId object, Tier tier) const {
  WindowQuery query;
  query.size = size(object);
  query.now = model_.now(position_);
  query.flush_lane_free =
      plan_.lane_free(tier == Tier::device ? Lane::device_to_host : Lane::nvme_write);
  query.stall = model_.stall(arrival(object, tier));
  query.free_is_ready = model_.free_is_ready();
  return slots(tier).find_room(query);
}

bool Memory::try_allocate(ObjectId object, Tier tier) {
  auto room = planned_room(object, tier);
  if (!room) {
    room = find_room(object, tier);
  }
  if (!room) {
    return false;
  }
  take_room(object, tier, *room);
  return true;
}

void Memory::allocate_at(ObjectId object, Tier tier, int64_t offset) {
  const auto room = slots(tier).room_at(offset, size(object));
  HR_CHECK(room, "pinned slots are where '{}' belongs", facts(object).name);
  take_room(object, tier, *room);
}

void Memory::take_room(ObjectId object, Tier tier, const Room& room) {
  for (const int32_t victim : room.victims) {
    evict(ObjectId{static_cast<uint32_t>(victim)}, tier);
  }
  Copy& taken = copy(object, tier);
  taken.ready =
      slots(tier).occupy(room.begin, size(object), static_cast<int32_t>(index_of(object)));
  taken.slot = room.begin;
}

void Memory::cancel_allocation(ObjectId object, Tier tier) {
  HR_CHECK(!is_valid(object, tier), "'{}' has been filled", facts(object).name);
  slots(tier).release(copy(object, tier).slot, 0);
  copy(object, tier).slot = -1;
}

void Memory::evict(ObjectId object, Tier tier) {
  if (is_only_copy(object, tier) && next_use_.value_is_needed(object)) {
    move_away(object, tier);
  }
  drop(object, tier);
  rescore(object);
}

void Memory::move_away(ObjectId object, Tier tier) {
  if (tier == Tier::host) {
    transfer(object, Tier::host,
             anchor_of(facts(object)) == Tier::device ? Tier::device : Tier::nvme);
    return;
  }
  if (!has_slot(object, Tier::host)) {
    const bool fits = try_allocate(object, Tier::host);
    HR_CHECK(fits, "no host slot for '{}' on its way down", facts(object).name);
  }
  transfer(object, Tier::device, Tier::host);
  return_home(object);
}

void Memory::transfer(ObjectId object, Tier from, Tier to) {
  Copy& target = copy(object, to);
  const bool new_slot = to != Tier::nvme && !target.valid && !has_home_in(facts(object), to);
  plan_.transfer(object, from, to, target.slot, new_slot, target.ready);
  target.valid = true;
  target.last_use = now();
  rescore(object);
}

void Memory::drop(ObjectId object, Tier tier) {
  Copy& old = copy(object, tier);
  const bool home = has_home_in(facts(object), tier);
  double ready = 0;
  if (old.valid && !home) {
    ready = plan_.drop(object, tier, old.slot);
  }
  old.valid = false;
  if (tier != Tier::nvme && old.slot >= 0 && anchor_of(facts(object)) != tier) {
    slots(tier).release(old.slot, ready);
    old.slot = -1;
  }
}

void Memory::bring(ObjectId object, Tier tier) {
  if (is_valid(object, tier)) {
    return;
  }
  if (tier == Tier::device) {
    if (!is_valid(object, Tier::host)) {
      HR_CHECK(is_valid(object, Tier::nvme), "'{}' has no value", facts(object).name);
      if (!has_slot(object, Tier::host)) {
        const bool fits = try_allocate(object, Tier::host);
        HR_CHECK(fits, "no host slot for '{}' on its way up", facts(object).name);
      }
      transfer(object, Tier::nvme, Tier::host);
    }
    transfer(object, Tier::host, Tier::device);
  } else {
    const Tier source = is_valid(object, Tier::device) ? Tier::device : Tier::nvme;
    HR_CHECK(is_valid(object, source), "'{}' has no value", facts(object).name);
    transfer(object, source, Tier::host);
  }
  deadline_ = std::max(deadline_, plan_.idle_from(object, tier));
}

void Memory::prefetch(ObjectId object, Tier tier, const std::vector<ObjectId>& live) {
  if (is_valid(object, tier) || !next_use_.value_is_needed(object)) {
    return;
  }
  if (!has_slot(object, tier)) {
    const auto room = find_room(object, tier);
    if (!room) {
      return;
    }
    if (std::any_of(room->victims.begin(), room->victims.end(), [&](int32_t victim) {
          return std::binary_search(live.begin(), live.end(),
                                    ObjectId{static_cast<uint32_t>(victim)});
        })) {
      return;
    }
    take_room(object, tier, *room);
  }
  bring(object, tier);
}

void Memory::release(ObjectId object) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (has_slot(object, tier) && anchor_of(facts(object)) != tier && !is_only_copy(object, tier)) {
      evict(object, tier);
    }
  }
}

void Memory::prepare_write(ObjectId object, Tier tier) {
  if (!is_valid(object, tier) && !has_home_in(facts(object), tier)) {
    Copy& placed = copy(object, tier);
    plan_.place(object, tier, placed.slot, placed.ready);
    placed.valid = true;
  }
}

void Memory::take_anchor(ObjectId object) {
  const Tier tier = *anchor_of(facts(object));
  const auto t = static_cast<size_t>(tier);
  allocate_at(object, tier, footprint_.homes[t] + footprint_.anchor_offset[index_of(object)]);
  pin(object, tier);
}

void Memory::give_anchor(ObjectId object) {
  const Tier tier = *anchor_of(facts(object));
  slots(tier).release(copy(object, tier).slot, plan_.idle_from(object, tier));
  copy(object, tier).slot = -1;
}

void Memory::drop_others(ObjectId object, Tier kept) {
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    if (tier != kept) {
      drop(object, tier);
    }
  }
}

void Memory::after_use(const Use& use) {
  next_use_.advance(use.object);
  Copy& used = copy(use.object, use.tier);
  used.valid = true;
  used.last_use = now();
  if (!next_use_.value_is_needed(use.object)) {
    drop(use.object, use.tier);
    drop_others(use.object, use.tier);
  } else if (writes(use.access)) {
    return_home(use.object);
  }
  rescore(use.object);
}

void Memory::return_home(ObjectId object) {
  const auto& home = facts(object).home;
  if (!home || is_valid(object, *home) || next_use_.will_be_written(object) ||
      !next_use_.outlives_trace(object)) {
    return;
  }
  if (*home == Tier::host) {
    transfer(object, Tier::device, Tier::host);
  } else if (is_valid(object, Tier::host)) {
    transfer(object, Tier::host, *home);
  }
}

void Memory::force_home(ObjectId object) {
  if (*facts(object).home == Tier::nvme && !is_valid(object, Tier::host)) {
    move_away(object, Tier::device);
  } else {
    return_home(object);
  }
}

void Memory::finish() {
  begin_operation(static_cast<uint32_t>(input_.trace->operations.size()));
  std::vector<std::pair<double, ObjectId>> away;
  for (uint32_t o = 0; o < copies_.size(); ++o) {
    const ObjectId object{o};
    const auto& home = facts(object).home;
    if (home && !is_valid(object, *home) && next_use_.value_is_needed(object)) {
      away.emplace_back(
          std::max(plan_.idle_from(object, Tier::device), plan_.idle_from(object, Tier::host)),
          object);
    }
  }
  std::sort(away.begin(), away.end());
  for (const auto& entry : away) {
    const ObjectId object = entry.second;
    if (!is_valid(object, *facts(object).home)) {
      force_home(object);
    }
  }
}

std::vector<Residency> Memory::residents() const {
  std::vector<UsedCopy> found;
  for (uint32_t o = 0; o < copies_.size(); ++o) {
    const ObjectId object{o};
    const auto& home = facts(object).home;
    for (const Tier tier : {Tier::device, Tier::host}) {
      const Copy& resident = copy(object, tier);
      // An anchored slot without a value is found again by measure_footprint().
      if (resident.slot >= 0 && (home == tier || resident.valid)) {
        const bool dirty = is_dirty(facts(object), tier, home && is_valid(object, *home));
        found.push_back({resident.last_use, {object, tier, resident.slot, dirty}});
      }
    }
    if (!home && is_valid(object, Tier::nvme)) {
      found.push_back({copy(object, Tier::nvme).last_use, {object, Tier::nvme, 0, true}});
    }
  }
  return by_last_use(std::move(found));
}

CopyFacts Memory::describe(ObjectId object, Tier tier) const {
  CopyFacts result;
  result.object = object;
  result.tier = tier;
  result.uses_over = next_use_.uses_over(object);
  result.next_use = next_use_.next_in(object, tier);
  result.position = position_;
  result.last_use = copy(object, tier).last_use;
  result.idle_from = plan_.idle_from(object, tier);
  result.in_host = tier == Tier::host && is_valid(object, Tier::device);
  const ObjectFacts& object_facts = facts(object);
  const bool moves = is_only_copy(object, tier) && next_use_.value_is_needed(object);
  if (tier == Tier::device) {
    result.refetch_seconds = seconds(object, Tier::host, Tier::device);
    if (moves) {
      result.flush_seconds = seconds(object, Tier::device, Tier::host);
    } else if (!is_valid(object, Tier::host)) {
      result.refetch_seconds += seconds(object, Tier::nvme, Tier::host);
    }
  } else {
    const Tier below = anchor_of(object_facts) == Tier::device ? Tier::device : Tier::nvme;
    result.refetch_seconds = seconds(object, below, Tier::host);
    if (moves) {
      result.flush_seconds = seconds(object, Tier::host, below);
    }
  }
  result.flush_is_due = next_use_.outlives_trace(object) && !next_use_.will_be_written(object);
  return result;
}

void Memory::rescore(ObjectId object) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (has_slot(object, tier) && anchor_of(facts(object)) != tier) {
      slots(tier).set_score(copy(object, tier).slot, model_.score(describe(object, tier)));
    }
  }
}

}  // namespace headrace::scheduler
