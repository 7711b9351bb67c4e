#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/compute_operation.h"
#include "engine/model_layout.h"
#include "engine/step_trace.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// A block is not cut into more tiles: each has operations and objects in a step.
inline constexpr int64_t kMostBlockTiles = 256;

/// Cuts of the blocks to choose from, the largest tiles first: whole blocks, then the MLP in as
/// even tiles as can be, and attention in tiles that are not larger, as far as there are such.
/// `pieces`: what tiles are multiples of; nothing but whole blocks where that is none, or no less
/// than the MLP.
std::vector<model::BlockCut> block_cut_choices(const model::ModelConfig& config,
                                               const model::BlockCut& pieces);

/// One operation of a block, or of a tile of one, for any micro-batch.
struct BlockStep {
  StepKind kind{};
  int64_t layer = 0;
  int64_t tile = 0;

  /// The gradient of a module is complete after it.
  bool gives_gradient() const;
};

/// Makes the operations of blocks, whole or cut. Layout and estimate must outlive it.
class BlockOperations : ComputeOperations {
 public:
  BlockOperations(const ModelLayout& layout, const WorkEstimate& work);

  /// In their order.
  std::vector<BlockStep> forward(int64_t layer) const;
  std::vector<BlockStep> backward(int64_t layer) const;
  /// `for_backward`, of a forward step: the block's input is needed again, with what the recompute
  /// level saves.
  ComputeOperation operation(const BlockStep& step, int64_t micro_batch, bool for_backward) const;

 private:
  ComputeOperation whole_forward(int64_t layer, int64_t micro_batch, bool for_backward) const;
  ComputeOperation whole_backward(int64_t layer, int64_t micro_batch) const;
  ComputeOperation attention_forward(const BlockStep& step, int64_t micro_batch,
                                     bool is_last_use) const;
  ComputeOperation mlp_forward(const BlockStep& step, int64_t micro_batch) const;
  ComputeOperation tile_backward(const BlockStep& step, int64_t micro_batch) const;
  ComputeOperation finish(const BlockStep& step, int64_t micro_batch) const;

  size_t module_of(const BlockStep& step) const;
  size_t norms_of(const BlockStep& step) const;
  ComputeOperation start(const BlockStep& step, int64_t micro_batch, const char* what,
                         double seconds) const;
  double share_of(size_t module) const;
  scheduler::Use activation(int64_t i, int64_t micro_batch, scheduler::Access access,
                            bool discard = false) const;

  Elements block_;  ///< of all modules of a block; the same for every layer
};

}  // namespace headrace::engine
