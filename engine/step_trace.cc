#include "engine/step_trace.h"

#include <utility>

#include "base/check.h"
#include "engine/block_operations.h"
#include "engine/gradient_operations.h"
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
      : layout_(layout),
        work_(work),
        gradients_(layout, work,
                   [this](Lane lane, std::string label, double seconds, std::vector<Use> uses,
                          const StepOperation& step) {
                     add(lane, std::move(label), seconds, std::move(uses), step);
                   }) {
    result_.trace.name = std::move(name);
    result_.update_mode = mode;
  }

  void add(ComputeOperation operation) {
    add(Lane::compute, std::move(operation.name), operation.seconds, std::move(operation.uses),
        operation.step);
  }

  GradientOperations& gradients() { return gradients_; }
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
  static Use host(ObjectId id, Access access) { return {id, Tier::host, access, false}; }

  ObjectId weights(size_t module) const { return layout_.modules[module].weights; }
  const std::string& name_of(size_t module) const { return layout_.modules[module].spec.name; }
  double seconds(Elements count, double bytes_per_element) const {
    return static_cast<double>(count.count()) * bytes_per_element / work_.cpu_bytes_per_second;
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
  GradientOperations gradients_;
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
        builder_.gradients().take(layout_.embed(tile), m, m == last_, true);
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
      builder_.gradients().take(module, m, m == last_, false);
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
    builder_.gradients().take(layout_.head(tile), m, m == last_ && !layout_.tied(), false);
  }
  void update_head(int64_t tile, int64_t m) {
    if (!layout_.tied()) {
      update(layout_.head(tile), m);
    }
  }
  void take_norm_gradient(int64_t m) {
    builder_.gradients().take(layout_.norm(), m, m == last_, false);
  }

  /// The module's gradient is final after the last micro-batch.
  void update(size_t module, int64_t micro_batch) {
    if (micro_batch == last_ && builder_.mode() != UpdateMode::after_norm) {
      builder_.gradients().update(module, builder_.mode(), false);
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
  builder.gradients().finish_norm(mode == UpdateMode::after_norm);
  if (mode == UpdateMode::after_norm) {
    for (size_t i = 0; i < layout.modules.size(); ++i) {
      builder.gradients().update(i, mode, i + 1 == layout.modules.size());
    }
  }
  return builder.take();
}

StepTrace make_redo_trace(const ModelLayout& layout, const WorkEstimate& work) {
  TraceBuilder builder(layout, work, "redo_updates");
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    builder.gradients().redo_update(i);
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
