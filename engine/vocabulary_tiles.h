#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute_operation.h"
#include "engine/model_layout.h"
#include "engine/step_trace.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// A step has operations and objects for each tile: more of them cost more than they save.
inline constexpr int64_t kMostVocabTiles = 256;

/// Sizes of vocabulary tiles to choose from, as LayoutOptions::tile_rows, largest first: one tile,
/// then as even ones as can be, of whole units; none that gives more than kMostVocabTiles.
std::vector<int64_t> vocab_tile_choices(const model::ModelConfig& config, int64_t logits_tile);

/// Makes the operations of embedding and head, whole or in vocabulary tiles. Layout and estimate
/// must outlive it.
class VocabularyOperations : ComputeOperations {
 public:
  VocabularyOperations(const ModelLayout& layout, const WorkEstimate& work)
      : ComputeOperations(layout, work) {}

  /// Tiles in order.
  ComputeOperation embed_forward(int64_t tile, int64_t micro_batch) const;
  /// Tiles in reverse order.
  ComputeOperation embed_backward(int64_t tile, int64_t micro_batch) const;
  /// Of a vocabulary in one tile.
  ComputeOperation head_train(int64_t micro_batch) const;
  ComputeOperation head_evaluate() const;
  /// Of several tiles, in order. `is_last_use`: neither the softmax nor the head's input is needed
  /// again.
  ComputeOperation head_fold(int64_t tile, int64_t micro_batch, bool is_last_use) const;
  /// Of several tiles, in reverse order.
  ComputeOperation head_gradients(int64_t tile, int64_t micro_batch) const;
  /// After the gradients of all tiles.
  ComputeOperation head_finish(int64_t micro_batch) const;

 private:
  double share_of(size_t module) const;
};

}  // namespace headrace::engine
