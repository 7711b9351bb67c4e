#include "engine/memory_use.h"

#include <optional>

namespace headrace::engine {

namespace {

/// What a tier's arena holds as actions are replayed.
class Occupancy {
 public:
  Occupancy(const MemoryPlan& plan, const std::vector<ObjectKind>& kinds, Tier tier, TierUse& use)
      : plan_(plan), kinds_(kinds), tier_(tier), use_(use), held_(kinds.size(), false) {}

  void take(ObjectId object, Tier tier) {
    const size_t i = index_of(object);
    if (tier != tier_ || held_[i]) {
      return;
    }
    held_[i] = true;
    const Bytes size = plan_.layout.objects[i].size;
    used_ += size;
    by_kind_[static_cast<size_t>(kinds_[i])] += size;
    if (used_ > use_.peak) {
      use_.peak = used_;
      use_.by_kind = by_kind_;
    }
  }
  void drop(ObjectId object, Tier tier) {
    const size_t i = index_of(object);
    if (tier != tier_ || !held_[i]) {
      return;
    }
    held_[i] = false;
    used_ -= plan_.layout.objects[i].size;
    by_kind_[static_cast<size_t>(kinds_[i])] -= plan_.layout.objects[i].size;
  }

 private:
  const MemoryPlan& plan_;
  const std::vector<ObjectKind>& kinds_;
  Tier tier_;
  TierUse& use_;
  std::vector<bool> held_;
  Bytes used_;
  std::array<Bytes, kObjectKinds> by_kind_{};
};

void replay(const scheduler::Schedule& schedule, Occupancy occupancy) {
  for (const scheduler::Residency& copy : schedule.initial) {
    occupancy.take(copy.object, copy.tier);
  }
  for (const scheduler::Action& action : schedule.actions) {
    switch (action.kind) {
      case scheduler::ActionKind::transfer:
        occupancy.take(action.object, action.to);
        break;
      case scheduler::ActionKind::place:
        occupancy.take(action.object, action.from);
        break;
      case scheduler::ActionKind::drop:
        occupancy.drop(action.object, action.from);
        break;
      case scheduler::ActionKind::operation:
        break;
    }
  }
}

}  // namespace

std::string_view to_string(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::weights:
      return "weights";
    case ObjectKind::optimizer:
      return "optimizer state";
    case ObjectKind::gradients:
      return "gradients";
    case ObjectKind::activations:
      return "activations";
  }
  return "unknown";
}

std::vector<ObjectKind> object_kinds(const ModelLayout& layout) {
  // What is not named below belongs to the gradients: sums, norms.
  std::vector<ObjectKind> kinds(layout.objects.size(), ObjectKind::gradients);
  const auto set = [&](ObjectId object, ObjectKind kind) { kinds[index_of(object)] = kind; };
  for (const ModuleObjects& module : layout.modules) {
    set(module.weights, ObjectKind::weights);
    for (const Shard& shard : module.shards) {
      set(shard.state, ObjectKind::optimizer);
      if (shard.weights_before) {
        set(*shard.weights_before, ObjectKind::weights);
      }
    }
  }
  for (const auto& micro_batch : layout.activations) {
    for (const ObjectId activation : micro_batch) {
      set(activation, ObjectKind::activations);
    }
  }
  for (const auto& micro_batch : layout.saved_values) {
    for (const std::optional<ObjectId>& saved : micro_batch) {
      if (saved) {
        set(*saved, ObjectKind::activations);
      }
    }
  }
  // What flows back, and what head and blocks keep from one tile to the next.
  for (const auto* objects : {&layout.activation_gradients, &layout.softmax,
                              &layout.normed_gradients, &layout.block_sums, &layout.residuals}) {
    for (const ObjectId object : *objects) {
      set(object, ObjectKind::activations);
    }
  }
  return kinds;
}

MemoryUse memory_use(const MemoryPlan& plan, const scheduler::Schedule& schedule) {
  MemoryUse use;
  use.device.arena = plan.device_arena;
  use.host.arena = plan.host_arena;
  (plan.has_device() ? use.device : use.host).fixed = plan.fixed_bytes();
  const std::vector<ObjectKind> kinds = object_kinds(plan.layout);
  replay(schedule, Occupancy(plan, kinds, Tier::device, use.device));
  replay(schedule, Occupancy(plan, kinds, Tier::host, use.host));
  return use;
}

}  // namespace headrace::engine
