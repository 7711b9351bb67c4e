#include "engine/gradient_operations.h"

#include <utility>

namespace headrace::engine {

using scheduler::Access;
using scheduler::Lane;
using scheduler::Use;

namespace {

bool is_on_device(const Shard& shard) {
  return shard.update_tier == Tier::device;
}

}  // namespace

void GradientOperations::take(size_t module, int64_t micro_batch, bool last, bool to_embedding) {
  const auto& shards = layout_.modules[module].shards;
  const auto each = [&](const auto& body) {
    for (size_t k = 0; k < shards.size(); ++k) {
      body(k);
    }
  };
  if (!shards.front().accumulator) {
    each([&](size_t k) { measure(module, k); });
    return;
  }
  const bool is_packed = layout_.modules[module].packed_gradient.has_value();
  const bool second = to_embedding && shards.front().embedding_accumulator.has_value();
  const auto sums_on_device = [&](size_t k) {
    return layout_.accumulates_on_device || is_on_device(shards[k]);
  };
  each([&](size_t k) {
    add_to(second ? *shards[k].embedding_accumulator : *shards[k].accumulator,
           {.kind = StepKind::accumulate,
            .module = module,
            .shard = k,
            .micro_batch = micro_batch,
            .on_device = sums_on_device(k),
            .to_embedding = second,
            .last_gradient = last && !second && !sums_on_device(k) && !is_packed});
  });
  if (!last) {
    return;
  }
  if (second) {
    each([&](size_t k) { join_sums(module, k, !is_packed && !is_on_device(shards[k])); });
  }
  if (is_packed) {
    each([&](size_t k) { round_sum(module, k, second); });
  }
  // The CPU has measured what it summed up itself.
  each([&](size_t k) {
    if (is_packed || is_on_device(shards[k]) || (sums_on_device(k) && !second)) {
      measure(module, k);
    }
  });
}

void GradientOperations::finish_norm(bool is_read) {
  std::vector<Use> uses = {{layout_.gradient_norm, Tier::host, norm_access(), !is_read}};
  if (layout_.device_statistics) {
    uses.push_back({*layout_.device_statistics, Tier::host, Access::read, true});
  }
  sink_(Lane::cpu_optimizer, "gradient_norm", 1e-5, std::move(uses),
        {.kind = StepKind::finish_norm});
}

void GradientOperations::update(size_t module, UpdateMode mode, bool last_of_step) {
  const auto& shards = layout_.modules[module].shards;
  for (size_t k = 0; k < shards.size(); ++k) {
    const bool speculative = mode == UpdateMode::speculative;
    std::vector<Use> uses = update_uses(module, k, speculative);
    if (speculative && shards[k].weights_before) {
      uses.push_back({*shards[k].weights_before, Tier::host, Access::write, false});
    } else if (mode == UpdateMode::after_norm) {
      uses.push_back({layout_.gradient_norm, shards[k].update_tier, Access::read,
                      last_of_step && k + 1 == shards.size()});
    }
    add(is_on_device(shards[k]), module, ".update",
        layout_.state.update_traffic(final_gradient(module)), std::move(uses),
        {.kind = StepKind::update, .module = module, .shard = k});
  }
}

void GradientOperations::redo_update(size_t module) {
  const auto& shards = layout_.modules[module].shards;
  for (size_t k = 0; k < shards.size(); ++k) {
    std::vector<Use> uses = update_uses(module, k, false);
    if (shards[k].weights_before) {
      uses.push_back({*shards[k].weights_before, Tier::host, Access::read, true});
    }
    add(false, module, ".redo_update", layout_.state.update_traffic(final_gradient(module)),
        std::move(uses), {.kind = StepKind::redo_update, .module = module, .shard = k});
  }
}

/// Of the final gradient that updates read.
DType GradientOperations::final_gradient(size_t module) const {
  return layout_.modules[module].packed_gradient ? layout_.dtype : DType::f32;
}

void GradientOperations::add(bool on_device, size_t module, const char* what, Bytes per_element,
                             std::vector<Use> uses, StepOperation step) {
  step.on_device = on_device;
  const double bytes =
      static_cast<double>(layout_.modules[module].shards[step.shard].count.count()) *
      static_cast<double>(per_element.count());
  sink_(on_device ? Lane::compute : Lane::cpu_optimizer, layout_.modules[module].spec.name + what,
        bytes / (on_device ? work_.device_bytes_per_second : work_.cpu_bytes_per_second),
        std::move(uses), step);
}

/// Adds the fresh gradient to one shard's accumulator.
void GradientOperations::add_to(ObjectId accumulator, StepOperation step) {
  const ModuleObjects& module = layout_.modules[step.module];
  step.first_gradient = started_.insert(index_of(accumulator)).second;
  const Tier tier = tier_of(step.on_device, module.shards[step.shard]);
  std::vector<Use> uses = {
      {module.gradient_of(step.micro_batch), tier, Access::read,
       step.shard + 1 == module.shards.size()},
      {accumulator, tier, step.first_gradient ? Access::write : Access::update, false}};
  if (step.last_gradient) {
    uses.push_back(norm_use(tier));
  }
  const Bytes sum = size_of(DType::f32);
  add(step.on_device, step.module, ".accumulate",
      size_of(layout_.dtype) + (step.first_gradient ? sum : sum * 2), std::move(uses), step);
}

/// Adds the embedding's sum of a shard to the head's.
void GradientOperations::join_sums(size_t module, size_t shard, bool is_final) {
  const Shard& objects = layout_.modules[module].shards[shard];
  const Tier tier = objects.update_tier;
  std::vector<Use> uses = {{*objects.embedding_accumulator, tier, Access::read, true},
                           {*objects.accumulator, tier, Access::update, false}};
  if (is_final) {
    uses.push_back(norm_use(tier));
  }
  add(is_on_device(objects), module, ".join_sums", size_of(DType::f32) * 3, std::move(uses),
      {.kind = StepKind::join_sums, .module = module, .shard = shard, .last_gradient = is_final});
}

void GradientOperations::round_sum(size_t module, size_t shard, bool second) {
  const ModuleObjects& objects = layout_.modules[module];
  const Shard& part = objects.shards[shard];
  const bool on_device = is_on_device(part) || (layout_.accumulates_on_device && !second);
  const Tier tier = tier_of(on_device, part);
  add(on_device, module, ".round_sum", size_of(DType::f32) + size_of(layout_.dtype),
      {{*part.accumulator, tier, Access::read, true},
       {*objects.packed_gradient, tier, shard == 0 ? Access::write : Access::update, false}},
      {.kind = StepKind::round_sum, .module = module, .shard = shard});
}

/// Takes the statistics of a final gradient, with the last of which the norm is known. On the
/// device, gaps between parameters are cleared in place.
void GradientOperations::measure(size_t module, size_t shard) {
  const ModuleObjects& objects = layout_.modules[module];
  const Shard& part = objects.shards[shard];
  const bool on_device = is_on_device(part);
  const Tier tier = part.update_tier;
  const Access access = objects.packed_gradient && !on_device ? Access::read : Access::update;
  const ObjectId gradient = objects.packed_gradient ? *objects.packed_gradient : *part.accumulator;
  add(on_device, module, ".measure", size_of(final_gradient(module)),
      {{gradient, tier, access, false}, on_device ? statistics_use() : norm_use(tier)},
      {.kind = StepKind::measure, .module = module, .shard = shard, .last_gradient = true});
}

/// State, final gradient and weights of a shard. `keep`: the gradient may be needed again.
std::vector<Use> GradientOperations::update_uses(size_t module, size_t shard, bool keep) const {
  const ModuleObjects& objects = layout_.modules[module];
  const Shard& part = objects.shards[shard];
  const bool is_last = shard + 1 == objects.shards.size();
  const auto& packed = objects.packed_gradient;
  const Tier tier = part.update_tier;
  return {{part.state, tier, Access::update, false},
          packed ? Use{*packed, tier, Access::read, !keep && is_last}
                 : Use{*part.accumulator, tier, Access::read, !keep},
          {objects.weights, tier, weights_access(shard), false}};
}

/// Where a separate master has the value, the first shard's update replaces the weights and the
/// others fill the rest of the same vector. Weights that hold the master, or its upper half, are
/// updated in place.
Access GradientOperations::weights_access(size_t shard) const {
  return layout_.state.master == MasterPlace::state && shard == 0 ? Access::write : Access::update;
}

Access GradientOperations::norm_access() {
  return std::exchange(norm_started_, true) ? Access::update : Access::write;
}

Use GradientOperations::norm_use(Tier tier) {
  return {layout_.gradient_norm, tier, norm_access(), false};
}

Use GradientOperations::statistics_use() {
  const Access access = std::exchange(statistics_started_, true) ? Access::update : Access::write;
  return {*layout_.device_statistics, Tier::device, access, false};
}

Tier GradientOperations::tier_of(bool on_device, const Shard& shard) const {
  return on_device ? layout_.placement.compute : shard.update_tier;
}

}  // namespace headrace::engine
