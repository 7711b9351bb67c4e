#include "engine/model_layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "engine/optimizer/moment_codes.h"

namespace headrace::engine {

namespace {

static_assert(model::kParameterAlignment.count() % kMomentBlock.count() == 0 &&
                  kStatisticsBlock.count() % kMomentBlock.count() == 0,
              "parameters and shards begin with a block of 8-bit moments");

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

/// Makes the objects of one module after the other, then those of the micro-batches.
class LayoutBuilder {
 public:
  LayoutBuilder(const model::ModelConfig& config, const LayoutOptions& options)
      : config_(config), options_(options), table_(layout_.objects, options.alignment) {
    layout_.dtype = options.dtype;
    layout_.placement = options.placement;
    layout_.state = state_format(options);
    layout_.order = options.order;
    layout_.update_mode = options.update_mode;
    layout_.accumulates_on_device = options.accumulate_on_device;
    layout_.vocab_tiles = (config.vocab_size + tile_rows() - 1) / tile_rows();
    layout_.tile_rows = options.tile_rows;
    layout_.cut = options.cut;
    layout_.attention_tiles = options.cut.attention_tiles(config);
    layout_.mlp_tiles = options.cut.mlp_tiles(config);
    layout_.shard_max = options.shard_max;
    layout_.recompute = options.recompute;
    layout_.recompute.resize(static_cast<size_t>(config.layers), model::Recompute::block);
  }

  int64_t tile_rows() const {
    return options_.tile_rows > 0 ? options_.tile_rows : config_.vocab_size;
  }

  /// Elements of the modules to come whose optimizer state lives on the device though its home is
  /// elsewhere.
  void keep_on_device(Elements count) { left_on_device_ = count; }

  void add_module(model::ModuleSpec spec) {
    const bool is_tied = config_.tie_word_embeddings && layout_.modules.size() < vocab_tiles();
    ModuleObjects module;
    module.first = added_;
    added_ += spec.count;
    module.weights = table_.persistent(
        spec.name + ".weights", bytes_for(spec.count, options_.dtype), options_.placement.weights);
    const bool sums = options_.micro_batches > 1 || is_tied;
    add_gradients(module, spec, sums);
    const Elements shard_max = options_.shard_max / kStatisticsBlock * kStatisticsBlock;
    Elements end;
    for (Elements first; first < spec.count; first = end) {
      Shard shard;
      shard.first = first;
      shard.count = std::min(shard_max, spec.count - first);
      const Tier home = cut_to_home(shard);
      if (home == Tier::device) {
        shard.update_tier = Tier::device;
        shard.statistics = device_blocks_;
        device_blocks_ += device::statistics_blocks(shard.count);
      }
      end = shard.first + shard.count;
      const std::string suffix = "." + std::to_string(module.shards.size());
      shard.state = table_.persistent(spec.name + ".optimizer" + suffix,
                                      layout_.state.offsets(shard.count).size, home);
      if (sums) {
        add_sums(shard, spec.name, suffix, module.packed_gradient.has_value(), is_tied);
      }
      if (keeps_weights()) {
        shard.weights_before =
            table_.persistent(spec.name + ".weights_before" + suffix,
                              bytes_for(shard.count, options_.dtype), Tier::host);
      }
      module.shards.push_back(shard);
    }
    module.spec = std::move(spec);
    layout_.modules.push_back(std::move(module));
  }

  void add_activations() {
    const Placement& placement = options_.placement;
    const Bytes size = bytes_for(Elements(options_.tokens) * config_.hidden_size, options_.dtype);
    const int64_t sets =
        options_.order == AccumulationOrder::layer_major ? options_.micro_batches : 1;
    for (int64_t set = 0; set < sets; ++set) {
      const std::string suffix = sets > 1 ? ".micro_batch." + std::to_string(set) : "";
      std::vector<ObjectId>& activations = layout_.activations.emplace_back();
      for (int64_t i = 0; i <= config_.layers; ++i) {
        activations.push_back(table_.transient("activation." + std::to_string(i) + suffix, size,
                                               placement.activations));
      }
      add_saved_values(suffix);
      const Tier floor =
          sets > 1 ? slower(placement.compute, placement.activations) : placement.compute;
      layout_.activation_gradients.push_back(
          table_.transient("activation_gradient" + suffix, size, floor));
      if (layout_.vocab_tiles > 1) {
        add_head_state(suffix, floor);
      }
      if (layout_.cut.is_cut()) {
        layout_.block_sums.push_back(
            table_.transient("block_sum" + suffix, options_.block_sum_bytes, floor));
        layout_.residuals.push_back(table_.transient("residual" + suffix, size, floor));
      }
    }
  }

  ModelLayout take() {
    layout_.gradient_norm = table_.transient("gradient_norm", Bytes(1), Tier::host);
    if (device_blocks_ > 0) {
      const Bytes size(device_blocks_ * static_cast<int64_t>(sizeof(double)));
      layout_.device_statistics = table_.transient("device_statistics", size, Tier::host);
    }
    return std::move(layout_);
  }

 private:
  size_t vocab_tiles() const { return static_cast<size_t>(layout_.vocab_tiles); }

  void add_head_state(const std::string& suffix, Tier floor) {
    const Elements tokens(options_.tokens);
    layout_.softmax.push_back(
        table_.transient("softmax" + suffix, bytes_for(tokens * 3, DType::f32), floor));
    layout_.normed_gradients.push_back(table_.transient(
        "normed_gradient" + suffix, bytes_for(tokens * config_.hidden_size, DType::f32), floor));
  }

  bool is_speculative() const { return options_.update_mode == UpdateMode::speculative; }
  /// The weights hold a part of the master, and the store has no older copy of them.
  bool keeps_weights() const {
    return is_speculative() && options_.placement.weights != Tier::nvme &&
           layout_.state.master != MasterPlace::state;
  }

  /// Of one set.
  void add_saved_values(const std::string& suffix) {
    auto& saved = layout_.saved_values.emplace_back();
    for (size_t i = 0; i < layout_.recompute.size(); ++i) {
      std::optional<ObjectId>& values = saved.emplace_back();
      if (layout_.recompute[i] != model::Recompute::block) {
        HR_CHECK(!layout_.cut.is_cut(), "a block that is cut has nothing to save");
        HR_CHECK(options_.saved_bytes[layout_.recompute[i]] > Bytes(0),
                 "recompute level {} without bytes to save",
                 static_cast<int>(layout_.recompute[i]));
        values = table_.transient("saved." + std::to_string(i) + suffix,
                                  options_.saved_bytes[layout_.recompute[i]],
                                  options_.placement.activations);
      }
    }
  }

  /// Home of the shard's state; of one that would be in two places only the first part is left.
  Tier cut_to_home(Shard& shard) {
    if (shard.count > left_on_device_) {
      const Elements rest = left_on_device_ / kStatisticsBlock * kStatisticsBlock;
      if (rest == Elements()) {
        left_on_device_ = rest;
        return options_.placement.optimizer;
      }
      shard.count = rest;
    }
    left_on_device_ -= shard.count;
    return Tier::device;
  }

  /// A gradient that an update may need a second time stays in the host, whatever its floor.
  ObjectId final_gradient(std::string name, Bytes size, Tier floor) {
    return is_speculative() ? table_.persistent(std::move(name), size, Tier::host)
                            : table_.transient(std::move(name), size, floor);
  }

  void add_gradients(ModuleObjects& module, const model::ModuleSpec& spec, bool sums) {
    // A fresh gradient passes down to where it is accumulated or used.
    const Tier floor = slower(options_.placement.update(), options_.placement.gradients);
    const Bytes size = bytes_for(spec.count, options_.dtype);
    const bool rounds = options_.dtype != DType::f32 && !options_.fp32_gradients;
    if (!sums || rounds) {
      module.packed_gradient = final_gradient(spec.name + ".gradient", size, floor);
    }
    if (!sums) {
      module.gradients = {*module.packed_gradient};
      return;
    }
    const bool in_turns = options_.order == AccumulationOrder::layer_major &&
                          options_.micro_batches > 1 && !options_.accumulate_on_device &&
                          options_.placement.update() != Tier::device;
    for (int i = 0; i < (in_turns ? 2 : 1); ++i) {
      module.gradients.push_back(
          table_.transient(spec.name + ".gradient." + std::to_string(i), size, floor));
    }
  }

  void add_sums(Shard& shard, const std::string& module, const std::string& suffix, bool rounds,
                bool is_tied) {
    const Bytes size = bytes_for(shard.count, DType::f32);
    const Tier floor = options_.placement.gradients;
    const std::string name = module + ".accumulator" + suffix;
    shard.accumulator =
        rounds ? table_.transient(name, size, floor) : final_gradient(name, size, floor);
    if (is_tied && options_.micro_batches > 1) {
      shard.embedding_accumulator =
          table_.transient(module + ".embedding_accumulator" + suffix, size, floor);
    }
  }

  const model::ModelConfig& config_;
  const LayoutOptions& options_;
  ModelLayout layout_;
  ObjectTable table_;
  Elements left_on_device_;
  Elements added_;             ///< of the modules so far
  int64_t device_blocks_ = 0;  ///< of statistics, of the shards that are updated on the device
};

}  // namespace

int64_t vocab_tile_unit(const model::ModelConfig& config, int64_t logits_tile) {
  const int64_t block = kStatisticsBlock.count();
  return std::lcm(logits_tile, block / std::gcd(block, config.hidden_size));
}

ModelLayout make_layout(const model::ModelConfig& config, const LayoutOptions& options) {
  HR_CHECK(options.offload_ratio == 1 || options.placement.compute == Tier::device,
           "an optimizer offload of {} without a device tier", options.offload_ratio);
  HR_CHECK(options.shard_max >= kStatisticsBlock, "shard of {} elements",
           options.shard_max.count());
  LayoutBuilder builder(config, options);
  std::vector<model::ModuleSpec> specs =
      model::tiled_module_specs(config, builder.tile_rows(), options.cut);
  Elements all;
  for (const model::ModuleSpec& spec : specs) {
    all += spec.count;
  }
  const double offloaded = std::ceil(static_cast<double>(all.count()) * options.offload_ratio);
  builder.keep_on_device(all - Elements(static_cast<int64_t>(offloaded)));
  for (model::ModuleSpec& spec : specs) {
    builder.add_module(std::move(spec));
  }
  builder.add_activations();
  return builder.take();
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
      bytes.optimizer_on_device += shard.update_tier == Tier::device ? size(shard.state) : Bytes(0);
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
  for (const auto& set : layout.saved_values) {
    for (const std::optional<ObjectId>& id : set) {
      bytes.saved += id ? size(*id) : Bytes(0);
    }
  }
  return bytes;
}

}  // namespace headrace::engine
