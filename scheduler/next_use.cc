#include "scheduler/next_use.h"

#include "scheduler/placement.h"

namespace headrace::scheduler {

NextUse::NextUse(const CompileInput& input)
    : foresight_(input.foresight),
      first_(input.objects->size() + 1),
      cursor_(input.objects->size()),
      writes_end_(input.objects->size()),
      persistent_(input.objects->size()) {
  const Trace& trace = *input.trace;
  const std::vector<ObjectFacts>& objects = *input.objects;
  for (const ObjectFacts& facts : objects) {
    has_value_.push_back(facts.home.has_value() ? 1 : 0);
  }
  for (const Residency& residency : input.initial) {
    has_value_[index_of(residency.object)] = 1;
  }
  for (const Operation& operation : trace.operations) {
    for (const Use& use : operation.uses) {
      ++first_[index_of(use.object) + 1];
    }
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    first_[i + 1] += first_[i];
  }
  visits_.resize(first_.back());
  std::vector<uint32_t> filled(objects.size());
  for (uint32_t position = 0; position < trace.operations.size(); ++position) {
    for (const Use& use : trace.operations[position].uses) {
      const uint32_t i = index_of(use.object);
      visits_[first_[i] + filled[i]++] = {position, use.tier, use.access, use.discard_after};
      if (writes(use.access)) {
        writes_end_[i] = filled[i];
      }
    }
  }
  next_on_device_.resize(visits_.size() + objects.size(), kNever);
  next_on_host_.resize(visits_.size() + objects.size(), kNever);
  for (uint32_t i = 0; i < objects.size(); ++i) {
    persistent_[i] = objects[i].home.has_value() ? 1 : 0;
    link(i, objects[i].home.has_value(), static_cast<uint32_t>(trace.operations.size()));
  }
}

void NextUse::link(uint32_t object, bool persistent, uint32_t operations) {
  const uint32_t begin = first_[object];
  const uint32_t end = first_[object + 1];
  // The second round starts from what the first found at the beginning of the trace.
  for (int round = 0; round < (persistent ? 2 : 1); ++round) {
    for (uint32_t v = end; v-- > begin;) {
      const Visit& visit = visits_[v];
      const size_t at = v + object;
      uint32_t& on_device = next_on_device_[at];
      on_device = next_on_device_[at + 1];
      next_on_host_[at] = visit.access == Access::write ? kNever : visit.operation;
      if (visit.tier == Tier::device || writes(visit.access)) {
        const bool helps = visit.tier == Tier::device && visit.access != Access::write;
        on_device = helps ? visit.operation : kNever;
      }
    }
    if (persistent && round == 0 && begin != end) {
      const auto one_round_later = [&](uint32_t position) {
        return position < operations ? position + operations : kNever;
      };
      next_on_device_[end + object] = one_round_later(next_on_device_[begin + object]);
      next_on_host_[end + object] = one_round_later(next_on_host_[begin + object]);
    }
  }
}

bool NextUse::value_is_needed(ObjectId object) const {
  const uint32_t i = index_of(object);
  const uint32_t at = first_[i] + cursor_[i];
  if (foresight_ != Foresight::whole_step) {
    return cursor_[i] == 0 ? has_value_[i] != 0 : !visits_[at - 1].discard_after;
  }
  if (at < first_[i + 1]) {
    return visits_[at].access != Access::write;
  }
  if (persistent_[i] == 0) {
    return false;
  }
  return cursor_[i] == 0 || !visits_[at - 1].discard_after;
}

}  // namespace headrace::scheduler
