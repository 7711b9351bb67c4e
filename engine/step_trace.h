#pragma once

#include <cstdint>
#include <vector>

#include "engine/model_layout.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// What an operation of a trace does; its body is chosen by this.
enum class StepKind : uint8_t {
  embed_forward,  ///< of the ids that one vocabulary tile holds
  block_forward,
  head_train,      ///< forward and backward of norm and head
  head_evaluate,   ///< forward only
  head_fold,       ///< forward of norm and one vocabulary tile of the head
  head_gradients,  ///< backward of one tile
  head_finish,     ///< backward of the norm, after all tiles
  block_backward,
  attention_forward,  ///< one tile of a cut block, as the following
  mlp_forward,
  attention_again,  ///< forward once more, for the MLP's backward
  mlp_backward,
  mlp_finish,  ///< backward of the norm, after all tiles
  attention_backward,
  attention_finish,  ///< backward of the norm, after all tiles
  embed_backward,
  accumulate,   ///< adds a module's fresh gradient to one shard's accumulator
  join_sums,    ///< adds one shard's embedding accumulator to its accumulator
  round_sum,    ///< one shard's sum to the final gradient in the compute dtype
  measure,      ///< statistics of one shard of a final gradient
  finish_norm,  ///< global norm and clip coefficient are known after it
  update,       ///< optimizer step of one shard
  redo_update,  ///< the same once more, from the values before the speculative one
  load,         ///< fills weights and optimizer state of one shard from the checkpoint
  save,         ///< hands one module's weights to the checkpoint writer
};

/// Binds an operation of the trace to its place in the model.
struct StepOperation {
  StepKind kind{};
  size_t module = 0;        ///< index in ModelLayout::modules
  size_t shard = 0;         ///< accumulate, update, load
  int64_t layer = 0;        ///< block operations
  int64_t tile = 0;         ///< of the vocabulary, or of a half of a block
  int64_t micro_batch = 0;  ///< forward, backward, accumulate
  /// Block operations: what forward saves and backward finds in one more object.
  model::Recompute recompute = model::Recompute::block;
  bool on_device = false;       ///< accumulate to update: by the compute lane, on the device
  bool to_embedding = false;    ///< accumulate: into the embedding accumulator
  bool first_gradient = false;  ///< accumulate: the accumulator is created
  bool last_gradient = false;   ///< accumulate: the accumulator is final afterwards
};

struct StepTrace {
  scheduler::Trace trace;
  std::vector<StepOperation> operations;            ///< parallel to trace.operations
  UpdateMode update_mode = UpdateMode::after_norm;  ///< of a training trace
};

/// Estimated seconds of each kind of work, for the schedule only.
struct WorkEstimate {
  double block_forward = 1e-3;
  model::PerLevel<double> block_backward{{2e-3, 2.5e-3, 3e-3}};
  double head = 1e-3;
  double embed = 1e-4;
  double cpu_bytes_per_second = 10e9;     ///< optimizer and accumulation
  double device_bytes_per_second = 10e9;  ///< the same on the device
};

/// One optimizer step: `micro_batches` forward and backward passes in the layout's order, and the
/// update of every shard as `mode` says, which the layout must allow: its own, or after_norm.
StepTrace make_training_trace(const ModelLayout& layout, int64_t micro_batches, UpdateMode mode,
                              const WorkEstimate& work);
/// Of a speculative layout: the update of every shard again, with the gradients that the step left.
StepTrace make_redo_trace(const ModelLayout& layout, const WorkEstimate& work);
/// One forward pass that ends in a loss.
StepTrace make_evaluation_trace(const ModelLayout& layout, const WorkEstimate& work);
/// Writes every persistent object once.
StepTrace make_load_trace(const ModelLayout& layout, const WorkEstimate& work);
/// Reads every module's weights once, on the host.
StepTrace make_save_trace(const ModelLayout& layout, const WorkEstimate& work);

}  // namespace headrace::engine
