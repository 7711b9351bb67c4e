#include "engine/step_residency.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/placement.h"

namespace headrace::engine {

using scheduler::Life;
using scheduler::ObjectFacts;
using scheduler::Residency;
using tiers::CopyState;

namespace {

constexpr std::array<Tier, kTierCount> kTiers = {Tier::device, Tier::host, Tier::nvme};

}  // namespace

StepResidency::StepResidency(tiers::TieredStore& store, const std::vector<ObjectFacts>& objects)
    : store_(store),
      objects_(objects),
      lives_(objects.size(), Life::unborn),
      last_use_(objects.size()) {
  for (uint32_t o = 0; o < objects.size(); ++o) {
    HR_CHECK(store.spec(ObjectId{o}).name == objects[o].name, "object {} is '{}', not '{}'", o,
             store.spec(ObjectId{o}).name, objects[o].name);
  }
}

bool StepResidency::has_value(ObjectId object) const {
  return std::any_of(kTiers.begin(), kTiers.end(),
                     [&](Tier tier) { return store_.state(object, tier) == CopyState::valid; });
}

void StepResidency::begin_step() {
  for (uint32_t o = 0; o < objects_.size(); ++o) {
    lives_[o] = has_value(ObjectId{o}) ? Life::alive : Life::unborn;
  }
}

void StepResidency::note(const scheduler::Operation& operation, std::vector<Life> lives) {
  for (const scheduler::Use& use : operation.uses) {
    last_use_[index_of(use.object)][static_cast<size_t>(use.tier)] = ++uses_;
  }
  lives_ = std::move(lives);
}

void StepResidency::end_step() {
  for (size_t o = 0; o < objects_.size(); ++o) {
    if (!objects_[o].home) {
      lives_[o] = Life::dead;
    }
  }
}

/// Whether the copy is one of the residency; drops it where it is of no use.
bool StepResidency::keep(ObjectId object, Tier tier) {
  const auto& home = objects_[index_of(object)].home;
  if (home == tier) {
    return tier != Tier::nvme;  // the slot is there for good; what is on nvme needs no mention
  }
  const CopyState state = store_.state(object, tier);
  HR_CHECK(state != CopyState::in_flight, "'{}' is on its way to {}",
           objects_[index_of(object)].name, to_string(tier));
  if (state == CopyState::valid && lives_[index_of(object)] == Life::alive) {
    return true;
  }
  if (state != CopyState::absent) {
    store_.drop(object, tier);
  }
  return false;
}

std::vector<Residency> StepResidency::collect() {
  std::vector<scheduler::UsedCopy> found;
  for (uint32_t o = 0; o < objects_.size(); ++o) {
    const ObjectId object{o};
    const auto& home = objects_[o].home;
    for (const Tier tier : kTiers) {
      if (!keep(object, tier)) {
        continue;
      }
      const int64_t offset = tier == Tier::nvme ? 0 : *store_.offset(object, tier);
      const bool home_is_current = home && store_.state(object, *home) == CopyState::valid;
      const bool dirty = scheduler::is_dirty(objects_[o], tier, home_is_current);
      found.push_back({last_use_[o][static_cast<size_t>(tier)], {object, tier, offset, dirty}});
    }
  }
  return scheduler::by_last_use(std::move(found));
}

}  // namespace headrace::engine
