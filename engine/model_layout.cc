#include "engine/model_layout.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::engine {

namespace {

Tier slower(Tier a, Tier b) {
  return std::max(a, b);
}

/// Gives out object ids and collects their facts.
class ObjectTable {
 public:
  ObjectTable(std::vector<scheduler::ObjectFacts>& objects, Bytes alignment)
      : objects_(objects), alignment_(alignment) {}

  /// Loading, saving and an optimizer on the host use it there whatever its home.
  ObjectId persistent(std::string name, Bytes size, Tier home) {
    return add({std::move(name), align_up(size, alignment_), slower(home, Tier::host), home});
  }
  ObjectId transient(std::string name, Bytes size, Tier floor) {
    return add({std::move(name), align_up(size, alignment_), floor, std::nullopt});
  }

 private:
  ObjectId add(scheduler::ObjectFacts facts) {
    objects_.push_back(std::move(facts));
    return ObjectId{static_cast<uint32_t>(objects_.size() - 1)};
  }

  std::vector<scheduler::ObjectFacts>& objects_;
  Bytes alignment_;
};

StateFormat state_format(const LayoutOptions& options) {
  StateFormat format;
  format.moments = options.state.moments;
  format.moment_dtype = options.state.moment_dtype;
  if (options.dtype == DType::f32) {
    format.master = MasterPlace::weight;
  } else if (options.dtype == DType::bf16 && options.state.split_master) {
    format.master = MasterPlace::split;
  } else {
    format.master = MasterPlace::state;
  }
  return format;
}

}  // namespace

ModelLayout make_layout(const model::ModelConfig& config, const LayoutOptions& options) {
  HR_CHECK(options.shard_max >= kStatisticsBlock, "shard of {} elements",
           options.shard_max.count());
  ModelLayout layout;
  layout.dtype = options.dtype;
  layout.placement = options.placement;
  ObjectTable table(layout.objects, options.alignment);

  const Placement& placement = options.placement;
  const Elements shard_max = options.shard_max / kStatisticsBlock * kStatisticsBlock;
  layout.state = state_format(options);
  layout.order = options.order;
  layout.update_mode = options.update_mode;
  layout.accumulates_on_device = options.accumulate_on_device;
  const bool speculative = options.update_mode == UpdateMode::speculative;
  const Tier gradients = slower(placement.update(), placement.gradients);
  // A gradient that an update may need a second time stays in the host, whatever its floor.
  const auto final_gradient = [&](std::string name, Bytes size, Tier floor) {
    return speculative ? table.persistent(std::move(name), size, Tier::host)
                       : table.transient(std::move(name), size, floor);
  };
  const bool keeps_weights =
      speculative && placement.weights != Tier::nvme && layout.state.master != MasterPlace::state;

  for (model::ModuleSpec& spec : model::module_specs(config)) {
    ModuleObjects module;
    module.weights = table.persistent(spec.name + ".weights", bytes_for(spec.count, options.dtype),
                                      placement.weights);
    const bool is_tied = config.tie_word_embeddings && layout.modules.empty();  // the embedding
    const bool sums = options.micro_batches > 1 || is_tied;
    // A fresh gradient passes down to where it is accumulated or used.
    const Bytes gradient_size = bytes_for(spec.count, options.dtype);
    const bool rounds = sums && options.dtype != DType::f32 && !options.fp32_gradients;
    if (!sums || rounds) {
      module.packed_gradient = final_gradient(spec.name + ".gradient", gradient_size, gradients);
    }
    if (!sums) {
      module.gradients = {*module.packed_gradient};
    }
    const bool in_turns = options.order == AccumulationOrder::layer_major &&
                          options.micro_batches > 1 && !options.accumulate_on_device;
    for (size_t i = 0; sums && i < (in_turns ? 2 : 1); ++i) {
      module.gradients.push_back(
          table.transient(spec.name + ".gradient." + std::to_string(i), gradient_size, gradients));
    }
    for (Elements first; first < spec.count; first += shard_max) {
      Shard shard;
      shard.first = first;
      shard.count = std::min(shard_max, spec.count - first);
      const std::string suffix = "." + std::to_string(module.shards.size());
      shard.state = table.persistent(spec.name + ".optimizer" + suffix,
                                     layout.state.offsets(shard.count).size, placement.optimizer);
      if (sums) {
        const std::string name = spec.name + ".accumulator" + suffix;
        const Bytes size = bytes_for(shard.count, DType::f32);
        shard.accumulator = rounds ? table.transient(name, size, placement.gradients)
                                   : final_gradient(name, size, placement.gradients);
      }
      if (is_tied && options.micro_batches > 1) {
        shard.embedding_accumulator =
            table.transient(spec.name + ".embedding_accumulator" + suffix,
                            bytes_for(shard.count, DType::f32), placement.gradients);
      }
      if (keeps_weights) {
        shard.weights_before = table.persistent(spec.name + ".weights_before" + suffix,
                                                bytes_for(shard.count, options.dtype), Tier::host);
      }
      module.shards.push_back(shard);
    }
    module.spec = std::move(spec);
    layout.modules.push_back(std::move(module));
  }

  const Bytes activation = bytes_for(Elements(options.tokens) * config.hidden_size, options.dtype);
  const int64_t sets = options.order == AccumulationOrder::layer_major ? options.micro_batches : 1;
  for (int64_t set = 0; set < sets; ++set) {
    const std::string suffix = sets > 1 ? ".micro_batch." + std::to_string(set) : "";
    std::vector<ObjectId>& activations = layout.activations.emplace_back();
    for (int64_t i = 0; i <= config.layers; ++i) {
      activations.push_back(table.transient("activation." + std::to_string(i) + suffix, activation,
                                            placement.activations));
    }
    layout.activation_gradients.push_back(table.transient(
        "activation_gradient" + suffix, activation,
        sets > 1 ? slower(placement.compute, placement.activations) : placement.compute));
  }
  layout.gradient_norm = table.transient("gradient_norm", Bytes(1), placement.update());
  return layout;
}

StateBytes state_bytes(const ModelLayout& layout) {
  const auto size = [&](ObjectId id) { return layout.objects[index_of(id)].size; };
  StateBytes bytes;
  for (const ModuleObjects& module : layout.modules) {
    bytes.weights += size(module.weights);
    // Sums that are rounded are alive all at once in one order only.
    const bool is_packed =
        module.packed_gradient &&
        (layout.order == AccumulationOrder::layer_major || !module.shards.front().accumulator);
    bytes.gradients += is_packed ? size(*module.packed_gradient) : Bytes(0);
    for (const Shard& shard : module.shards) {
      bytes.optimizer += size(shard.state);
      for (const auto& sum : {shard.accumulator, shard.embedding_accumulator}) {
        bytes.gradients += sum && !is_packed ? size(*sum) : Bytes(0);
      }
    }
  }
  for (const std::vector<ObjectId>& set : layout.activations) {
    for (const ObjectId id : set) {
      bytes.activations += size(id);
    }
  }
  return bytes;
}

}  // namespace headrace::engine
