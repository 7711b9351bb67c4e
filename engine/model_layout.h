#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/tier.h"
#include "base/units.h"
#include "device/optimizer.h"
#include "engine/accumulation_order.h"
#include "engine/state_format.h"
#include "engine/update_mode.h"
#include "model/model_config.h"
#include "model/recompute.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// Homes and floors of the object kinds; what the offload settings mean once it is known where
/// compute happens.
struct Placement {
  Tier compute = Tier::host;      ///< where operations of the network need their objects
  Tier weights = Tier::host;      ///< home of the 16-bit (or fp32) weights
  Tier optimizer = Tier::host;    ///< home of master weights and moments
  Tier gradients = Tier::host;    ///< slowest tier that may hold gradient accumulators
  Tier activations = Tier::host;  ///< slowest tier that may hold saved activations
  /// Where optimizer and gradient accumulation run, but for a share of the optimizer that stays on
  /// the device: on the host unless all of the optimizer lives on the device.
  Tier update() const { return optimizer == Tier::device ? Tier::device : Tier::host; }
};

/// A range of a module's packed vector that is updated at a time (a sub-group).
struct Shard {
  Elements first;
  Elements count;
  ObjectId state{};  ///< optimizer state, as ModelLayout::state says
  /// Where optimizer and statistics find what they work on: on the device they are work of the
  /// compute lane, else of the CPU.
  Tier update_tier = Tier::host;
  /// Of a shard that is updated on the device: its first block in ModelLayout::device_statistics.
  std::optional<int64_t> statistics;
  /// fp32 sum of the gradients, `count` elements. Empty where a module has one gradient per step.
  std::optional<ObjectId> accumulator;
  /// Of a matrix that is both embedding and head, in a step of several micro-batches: the gradients
  /// of the embedding are summed here, so that the sum does not depend on the order of the passes.
  std::optional<ObjectId> embedding_accumulator;
  /// Speculative updates: the weights before the update, where no older copy of them is left.
  std::optional<ObjectId> weights_before;
};

struct ModuleObjects {
  model::ModuleSpec spec;
  Elements first;      ///< elements of the modules before it, whatever the vocabulary tiles
  ObjectId weights{};  ///< packed vector in the compute dtype
  /// Packed gradient of one micro-batch in the compute dtype. Two take turns where the
  /// micro-batches follow each other, so that one is accumulated while the next is computed.
  std::vector<ObjectId> gradients;
  /// What the updates read where the final gradient is in the compute dtype, packed: the step's
  /// only gradient, or the sums rounded once. Empty: they read the accumulators.
  std::optional<ObjectId> packed_gradient;
  std::vector<Shard> shards;

  /// What a micro-batch's gradient is written to.
  ObjectId gradient_of(int64_t micro_batch) const {
    return gradients[static_cast<size_t>(micro_batch) % gradients.size()];
  }
};

/// Every object of a training run and where it belongs. A value; thread-safe to read.
struct ModelLayout {
  DType dtype = DType::f32;
  Placement placement;
  StateFormat state;
  AccumulationOrder order = AccumulationOrder::layer_major;
  UpdateMode update_mode = UpdateMode::after_norm;
  bool accumulates_on_device = false;  ///< gradients are summed by the compute lane
  Elements shard_max;                  ///< shards are not larger
  int64_t vocab_tiles = 1;             ///< modules that a matrix over the vocabulary is cut into
  int64_t tile_rows = 0;               ///< as LayoutOptions::tile_rows
  model::BlockCut cut;
  int64_t attention_tiles = 0;  ///< of a block that is cut, as mlp_tiles
  int64_t mlp_tiles = 0;
  std::vector<ModuleObjects>
      modules;  ///< as model::tiled_module_specs: embed, blocks, norm[, head]
  /// [set][layers + 1]: input of block i; the last is the head's. One set per micro-batch that is
  /// under way at once.
  std::vector<std::vector<ObjectId>> activations;
  std::vector<model::Recompute> recompute;  ///< [layer]
  /// [set][layer]: what a block's forward pass saves beside its input, as its level says.
  std::vector<std::vector<std::optional<ObjectId>>> saved_values;
  std::vector<ObjectId> activation_gradients;  ///< [set]: flowing back, updated in place
  /// With several vocabulary tiles, [set]: what the head keeps from tile to tile, as
  /// model::Network::HeadTile says: the running softmax, and the gradient of the normed input.
  std::vector<ObjectId> softmax;
  std::vector<ObjectId> normed_gradients;
  /// With blocks that are cut, [set]: what goes from tile to tile, as model::Network::BlockTile
  /// says, and the residual stream behind attention, which backward computes again.
  std::vector<ObjectId> block_sums;
  std::vector<ObjectId> residuals;
  ObjectId gradient_norm{};  ///< orders the norm before the updates; no content of note
  /// Gradient statistics of the shards that are updated on the device: a double for each block of
  /// kStatisticsBlock. Empty where there are none.
  std::optional<ObjectId> device_statistics;
  std::vector<scheduler::ObjectFacts> objects;  ///< by ObjectId

  /// Micro-batches that are never under way together share a set.
  size_t set_of(int64_t micro_batch) const {
    return static_cast<size_t>(micro_batch) % activations.size();
  }
  model::Recompute level_of(int64_t layer) const { return recompute[static_cast<size_t>(layer)]; }
  std::optional<ObjectId> saved(int64_t layer, int64_t micro_batch) const {
    return saved_values[set_of(micro_batch)][static_cast<size_t>(layer)];
  }
  int64_t layers() const { return static_cast<int64_t>(activations.front().size()) - 1; }
  bool tied() const { return modules.size() == norm() + 1; }
  size_t embed(int64_t tile = 0) const { return static_cast<size_t>(tile); }
  /// The block, or the first of its modules.
  size_t block(int64_t layer) const {
    const int64_t modules_each = cut.is_cut() ? 2 + attention_tiles + mlp_tiles : 1;
    return static_cast<size_t>(vocab_tiles + layer * modules_each);
  }
  size_t norm() const { return block(layers()); }
  /// The module that holds the output matrix, or a tile of it: "head", or "embed" where tied.
  size_t head(int64_t tile = 0) const {
    return tied() ? embed(tile) : norm() + 1 + static_cast<size_t>(tile);
  }
};

struct LayoutOptions {
  DType dtype = DType::f32;
  Placement placement;
  StateRequest state;
  /// Share of the optimizer state at its home; the rest, of the first modules, lives on the device
  /// and is updated there. Below 1 with a device tier only.
  double offload_ratio = 1;
  Elements shard_max;  ///< sub_group_size, already limited by the host budget
  int64_t tokens = 0;  ///< per micro-batch
  /// Vocabulary entries per tile, a multiple of vocab_tile_unit(); 0: one tile.
  int64_t tile_rows = 0;
  model::BlockCut cut;    ///< of whole pieces (model::Network::block_pieces())
  Bytes block_sum_bytes;  ///< per micro-batch, where blocks are cut
  int64_t micro_batches = 1;
  bool fp32_gradients =
      false;  ///< sums of gradients stay in fp32; else rounded to `dtype` when final
  AccumulationOrder order = AccumulationOrder::layer_major;
  UpdateMode update_mode = UpdateMode::after_norm;
  bool accumulate_on_device = false;        ///< layer_major with a device tier only
  std::vector<model::Recompute> recompute;  ///< [layer]; empty: every block
  model::PerLevel<Bytes> saved_bytes;       ///< per block and micro-batch
  Bytes alignment{4096};                    ///< of slots
};

/// Shards start at multiples of this, so that gradient norms are summed in the same blocks whatever
/// the shard size.
using device::kStatisticsBlock;

/// Vocabulary tiles hold a multiple of this many entries, unless there is one: whole tiles of the
/// head's logits and whole blocks of gradient statistics, so that no sum depends on the tiles.
int64_t vocab_tile_unit(const model::ModelConfig& config, int64_t logits_tile);

ModelLayout make_layout(const model::ModelConfig& config, const LayoutOptions& options);

/// Bytes of all persistent objects and, separately, of one step's gradients and activations.
struct StateBytes {
  Bytes weights;
  Bytes optimizer;
  Bytes optimizer_on_device;  ///< of these
  Bytes gradients;
  Bytes activations;  ///< inputs of blocks and head
  Bytes saved;        ///< what blocks save beside their input
};
StateBytes state_bytes(const ModelLayout& layout);

}  // namespace headrace::engine
