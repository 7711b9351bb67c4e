#include "engine/step_trace.h"

#include <set>
#include <utility>

#include "base/check.h"
#include "engine/block_operations.h"
#include "engine/vocabulary_tiles.h"

namespace headrace::engine {

using scheduler::Access;
using scheduler::Lane;
using scheduler::Use;

namespace {

/// Appends operations to a trace, in the words of the model.
class TraceBuilder {
 public:
  TraceBuilder(const ModelLayout& layout, const WorkEstimate& work, std::string name,
               UpdateMode mode = UpdateMode::after_norm)
      : layout_(layout), work_(work) {
    result_.trace.name = std::move(name);
    result_.update_mode = mode;
  }

  void add(ComputeOperation operation) {
    add(Lane::compute, std::move(operation.name), operation.seconds, std::move(operation.uses),
        operation.step);
  }

  /// Takes a module's fresh gradient: into its accumulators, which are created at its first one,
  /// or as it is. `last`: its gradients are final afterwards. `to_embedding`: into the embedding
  /// accumulators, where there are.
  void accumulate(size_t module, int64_t micro_batch, bool last, bool to_embedding = false) {
    const auto& shards = layout_.modules[module].shards;
    const bool is_packed = layout_.modules[module].packed_gradient.has_value();
    if (!shards.front().accumulator) {
      measure(module);
      return;
    }
    const bool second = to_embedding && shards.front().embedding_accumulator.has_value();
    const bool on_device = layout_.accumulates_on_device;
    for (size_t k = 0; k < shards.size(); ++k) {
      add_to(second ? *shards[k].embedding_accumulator : *shards[k].accumulator,
             {.kind = StepKind::accumulate,
              .module = module,
              .shard = k,
              .micro_batch = micro_batch,
              .on_device = on_device,
              .to_embedding = second,
              .last_gradient = last && !second && !on_device && !is_packed});
    }
    if (!last) {
      return;
    }
    for (size_t k = 0; second && k < shards.size(); ++k) {
      join_sums(module, k, !is_packed);
    }
    for (size_t k = 0; is_packed && k < shards.size(); ++k) {
      round_sum(module, k, on_device && !second);
    }
    if (is_packed || (on_device && !second)) {
      measure(module);
    }
  }

  void finish_norm() {
    const bool is_read = mode() == UpdateMode::after_norm;
    add(Lane::cpu_optimizer, "gradient_norm", 1e-5,
        {{layout_.gradient_norm, layout_.placement.update(), Access::update, !is_read}},
        {.kind = StepKind::finish_norm});
  }

  void update(size_t module, bool last_of_step) {
    const auto& shards = layout_.modules[module].shards;
    for (size_t k = 0; k < shards.size(); ++k) {
      const bool speculative = mode() == UpdateMode::speculative;
      std::vector<Use> uses = update_uses(module, k, speculative);
      if (speculative && shards[k].weights_before) {
        uses.push_back({*shards[k].weights_before, Tier::host, Access::write, false});
      } else if (mode() == UpdateMode::after_norm) {
        uses.push_back({layout_.gradient_norm, shards[k].update_tier, Access::read,
                        last_of_step && k + 1 == shards.size()});
      }
      add(Lane::cpu_optimizer, name_of(module) + ".update",
          seconds(shards[k].count, kUpdateBytesPerElement), std::move(uses),
          {.kind = StepKind::update, .module = module, .shard = k});
    }
  }

  void redo_update(size_t module) {
    const auto& shards = layout_.modules[module].shards;
    for (size_t k = 0; k < shards.size(); ++k) {
      std::vector<Use> uses = update_uses(module, k, false);
      if (shards[k].weights_before) {
        uses.push_back({*shards[k].weights_before, Tier::host, Access::read, true});
      }
      add(Lane::cpu_optimizer, name_of(module) + ".redo_update",
          seconds(shards[k].count, kUpdateBytesPerElement), std::move(uses),
          {.kind = StepKind::redo_update, .module = module, .shard = k});
    }
  }

  UpdateMode mode() const { return result_.update_mode; }

  void load(size_t module) {
    const auto& shards = layout_.modules[module].shards;
    for (size_t k = 0; k < shards.size(); ++k) {
      add(Lane::cpu_optimizer, name_of(module) + ".load", seconds(shards[k].count, 30),
          {host(shards[k].state, Access::write),
           host(weights(module), k == 0 ? Access::write : Access::update)},
          {.kind = StepKind::load, .module = module, .shard = k});
    }
  }

  void save(size_t module) {
    add(Lane::cpu_optimizer, name_of(module) + ".save",
        seconds(layout_.modules[module].spec.count, 4), {host(weights(module), Access::read)},
        {.kind = StepKind::save, .module = module});
  }

  StepTrace take() { return std::move(result_); }

 private:
  /// Where a separate master has the value, the first shard's update replaces the weights and the
  /// others fill the rest of the same vector. Weights that hold the master, or its upper half, are
  /// updated in place.
  Access weights_access(size_t shard) const {
    return layout_.state.master == MasterPlace::state && shard == 0 ? Access::write
                                                                    : Access::update;
  }

  /// Adds the embedding's sum of a shard to the head's.
  void join_sums(size_t module, size_t shard, bool is_final) {
    const Shard& objects = layout_.modules[module].shards[shard];
    const Tier tier = objects.update_tier;
    std::vector<Use> uses = {{*objects.embedding_accumulator, tier, Access::read, true},
                             {*objects.accumulator, tier, Access::update, false}};
    if (is_final) {
      uses.push_back(norm_use(tier));
    }
    add(Lane::cpu_optimizer, name_of(module) + ".join_sums", seconds(objects.count, 12),
        std::move(uses),
        {.kind = StepKind::join_sums, .module = module, .shard = shard, .last_gradient = is_final});
  }

  void round_sum(size_t module, size_t shard, bool on_device) {
    const ModuleObjects& objects = layout_.modules[module];
    const Access access = shard == 0 ? Access::write : Access::update;
    const Tier tier = on_device ? layout_.placement.compute : objects.shards[shard].update_tier;
    add(on_device ? Lane::compute : Lane::cpu_optimizer, name_of(module) + ".round_sum",
        on_device ? device_seconds(objects.shards[shard].count, 6)
                  : seconds(objects.shards[shard].count, 6),
        {{*objects.shards[shard].accumulator, tier, Access::read, true},
         {*objects.packed_gradient, tier, access, false}},
        {.kind = StepKind::round_sum, .module = module, .shard = shard, .on_device = on_device});
  }

  /// Takes the statistics of a final gradient, with the last of which the norm is known.
  void measure(size_t module) {
    const ModuleObjects& objects = layout_.modules[module];
    for (size_t k = 0; k < objects.shards.size(); ++k) {
      const Tier tier = objects.shards[k].update_tier;
      const Use gradient = objects.packed_gradient
                               ? Use{*objects.packed_gradient, tier, Access::read, false}
                               : Use{*objects.shards[k].accumulator, tier, Access::update, false};
      add(Lane::cpu_optimizer, name_of(module) + ".measure", seconds(objects.shards[k].count, 2),
          {gradient, norm_use(tier)},
          {.kind = StepKind::measure, .module = module, .shard = k, .last_gradient = true});
    }
  }

  /// Adds the fresh gradient to one shard's accumulator.
  void add_to(ObjectId accumulator, StepOperation step) {
    const auto& shards = layout_.modules[step.module].shards;
    step.first_gradient = started_.insert(index_of(accumulator)).second;
    const bool on_device = step.on_device;
    const Tier tier = on_device ? layout_.placement.compute : shards[step.shard].update_tier;
    std::vector<Use> uses = {
        {gradient(step.module, step.micro_batch), tier, Access::read,
         step.shard + 1 == shards.size()},
        {accumulator, tier, step.first_gradient ? Access::write : Access::update, false}};
    if (step.last_gradient) {
      uses.push_back(norm_use(tier));
    }
    const Elements count = shards[step.shard].count;
    add(on_device ? Lane::compute : Lane::cpu_optimizer, name_of(step.module) + ".accumulate",
        on_device ? device_seconds(count, 10) : seconds(count, 10), std::move(uses), step);
  }

  /// State, final gradient and weights of a shard. `keep`: the gradient may be needed again.
  std::vector<Use> update_uses(size_t module, size_t shard, bool keep) const {
    const auto& shards = layout_.modules[module].shards;
    const bool is_last = shard + 1 == shards.size();
    const auto& packed = layout_.modules[module].packed_gradient;
    const Tier tier = shards[shard].update_tier;
    return {{shards[shard].state, tier, Access::update, false},
            packed ? Use{*packed, tier, Access::read, !keep && is_last}
                   : Use{*shards[shard].accumulator, tier, Access::read, !keep},
            {weights(module), tier, weights_access(shard), false}};
  }

  Use norm_use(Tier tier) {
    const Access access = std::exchange(norm_started_, true) ? Access::update : Access::write;
    return {layout_.gradient_norm, tier, access, false};
  }
  static Use host(ObjectId id, Access access) { return {id, Tier::host, access, false}; }

  ObjectId weights(size_t module) const { return layout_.modules[module].weights; }
  ObjectId gradient(size_t module, int64_t micro_batch) const {
    return layout_.modules[module].gradient_of(micro_batch);
  }
  const std::string& name_of(size_t module) const { return layout_.modules[module].spec.name; }
  double seconds(Elements count, double bytes_per_element) const {
    return static_cast<double>(count.count()) * bytes_per_element / work_.cpu_bytes_per_second;
  }

  double device_seconds(Elements count, double bytes_per_element) const {
    return static_cast<double>(count.count()) * bytes_per_element / work_.device_bytes_per_second;
  }

  void add(Lane lane, std::string name, double seconds, std::vector<Use> uses, StepOperation step) {
    scheduler::Operation operation;
    // Compute shares the workspace and the token buffers; checkpoints are written front to back.
    operation.in_order = lane == Lane::compute || step.kind == StepKind::save;
    operation.starts_pass =
        step.kind == StepKind::embed_forward && step.tile == 0 &&
        (step.micro_batch == 0 || layout_.order == AccumulationOrder::micro_batch_major);
    operation.name = std::move(name);
    operation.lane = lane;
    operation.uses = std::move(uses);
    operation.seconds = seconds;
    result_.trace.operations.push_back(std::move(operation));
    result_.operations.push_back(step);
  }

  const ModelLayout& layout_;
  const WorkEstimate& work_;
  std::set<size_t> started_;  ///< accumulators that hold a gradient
  bool norm_started_ = false;
  StepTrace result_;
};

}  // namespace

namespace {

/// The passes of a step; each is run for a range of micro-batches.
class Passes {
 public:
  Passes(TraceBuilder& builder, const ModelLayout& layout, const WorkEstimate& work,
         int64_t micro_batches)
      : builder_(builder),
        layout_(layout),
        vocabulary_(layout, work),
        blocks_(layout, work),
        last_(micro_batches - 1) {}

  void run(int64_t first, int64_t end) {
    const auto each = [&](const auto& pass) {
      for (int64_t m = first; m < end; ++m) {
        pass(m);
      }
    };
    for (int64_t tile = 0; tile < layout_.vocab_tiles; ++tile) {
      each([&](int64_t m) { builder_.add(vocabulary_.embed_forward(tile, m)); });
    }
    for (int64_t i = 0; i < layout_.layers(); ++i) {
      for (const BlockStep& step : blocks_.forward(i)) {
        each([&](int64_t m) { builder_.add(blocks_.operation(step, m, true)); });
      }
    }
    if (layout_.vocab_tiles > 1) {
      tiled_head(each);
    } else {
      each([&](int64_t m) {
        builder_.add(vocabulary_.head_train(m));
        take_head_gradient(0, m);
        take_norm_gradient(m);
        update_head(0, m);
        update(layout_.norm(), m);
      });
    }
    for (int64_t i = layout_.layers() - 1; i >= 0; --i) {
      for (const BlockStep& step : blocks_.backward(i)) {
        each([&](int64_t m) { block_backward(step, m); });
      }
    }
    for (int64_t tile = layout_.vocab_tiles - 1; tile >= 0; --tile) {
      each([&](int64_t m) {
        builder_.add(vocabulary_.embed_backward(tile, m));
        builder_.accumulate(layout_.embed(tile), m, m == last_, true);
        update(layout_.embed(tile), m);
      });
    }
  }

 private:
  void block_backward(const BlockStep& step, int64_t m) {
    ComputeOperation operation = blocks_.operation(step, m, true);
    const size_t module = operation.step.module;
    builder_.add(std::move(operation));
    if (step.gives_gradient()) {
      builder_.accumulate(module, m, m == last_);
      update(module, m);
    }
  }

  /// Forward over all tiles and back again: the last ones are still there, and the first ones are
  /// the last to leave.
  template <class Each>
  void tiled_head(const Each& each) {
    const int64_t last_tile = layout_.vocab_tiles - 1;
    for (int64_t tile = 0; tile <= last_tile; ++tile) {
      each([&](int64_t m) { builder_.add(vocabulary_.head_fold(tile, m, false)); });
    }
    for (int64_t tile = last_tile; tile >= 0; --tile) {
      each([&](int64_t m) {
        builder_.add(vocabulary_.head_gradients(tile, m));
        take_head_gradient(tile, m);
        update_head(tile, m);
      });
    }
    each([&](int64_t m) {
      builder_.add(vocabulary_.head_finish(m));
      take_norm_gradient(m);
      update(layout_.norm(), m);
    });
  }

  /// A tied matrix gets two gradients per micro-batch: the head's, then the embedding's.
  void take_head_gradient(int64_t tile, int64_t m) {
    builder_.accumulate(layout_.head(tile), m, m == last_ && !layout_.tied());
  }
  void update_head(int64_t tile, int64_t m) {
    if (!layout_.tied()) {
      update(layout_.head(tile), m);
    }
  }
  void take_norm_gradient(int64_t m) { builder_.accumulate(layout_.norm(), m, m == last_); }

  /// The module's gradient is final after the last micro-batch.
  void update(size_t module, int64_t micro_batch) {
    if (micro_batch == last_ && builder_.mode() != UpdateMode::after_norm) {
      builder_.update(module, false);
    }
  }

  TraceBuilder& builder_;
  const ModelLayout& layout_;
  VocabularyOperations vocabulary_;
  BlockOperations blocks_;
  int64_t last_;
};

}  // namespace

StepTrace make_training_trace(const ModelLayout& layout, int64_t micro_batches, UpdateMode mode,
                              const WorkEstimate& work) {
  HR_CHECK(mode == layout.update_mode || mode == UpdateMode::after_norm,
           "update mode {} with a layout for {}", static_cast<int>(mode),
           static_cast<int>(layout.update_mode));
  TraceBuilder builder(layout, work,
                       mode == UpdateMode::speculative ? "train.speculative" : "train", mode);
  Passes passes(builder, layout, work, micro_batches);
  if (layout.order == AccumulationOrder::layer_major) {
    passes.run(0, micro_batches);
  } else {
    for (int64_t m = 0; m < micro_batches; ++m) {
      passes.run(m, m + 1);
    }
  }
  builder.finish_norm();
  if (mode == UpdateMode::after_norm) {
    for (size_t i = 0; i < layout.modules.size(); ++i) {
      builder.update(i, i + 1 == layout.modules.size());
    }
  }
  return builder.take();
}

StepTrace make_redo_trace(const ModelLayout& layout, const WorkEstimate& work) {
  TraceBuilder builder(layout, work, "redo_updates");
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    builder.redo_update(i);
  }
  return builder.take();
}

StepTrace make_evaluation_trace(const ModelLayout& layout, const WorkEstimate& work) {
  TraceBuilder builder(layout, work, "evaluate");
  const VocabularyOperations vocabulary(layout, work);
  const BlockOperations blocks(layout, work);
  for (int64_t tile = 0; tile < layout.vocab_tiles; ++tile) {
    builder.add(vocabulary.embed_forward(tile, 0));
  }
  for (int64_t i = 0; i < layout.layers(); ++i) {
    for (const BlockStep& step : blocks.forward(i)) {
      builder.add(blocks.operation(step, 0, false));
    }
  }
  for (int64_t tile = 0; layout.vocab_tiles > 1 && tile < layout.vocab_tiles; ++tile) {
    builder.add(vocabulary.head_fold(tile, 0, tile + 1 == layout.vocab_tiles));
  }
  if (layout.vocab_tiles == 1) {
    builder.add(vocabulary.head_evaluate());
  }
  return builder.take();
}

StepTrace make_load_trace(const ModelLayout& layout, const WorkEstimate& work) {
  TraceBuilder builder(layout, work, "load");
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    builder.load(i);
  }
  return builder.take();
}

StepTrace make_save_trace(const ModelLayout& layout, const WorkEstimate& work) {
  TraceBuilder builder(layout, work, "save");
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    builder.save(i);
  }
  return builder.take();
}

}  // namespace headrace::engine
