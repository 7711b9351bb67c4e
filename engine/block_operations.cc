#include "engine/block_operations.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::engine {

using model::BlockCut;
using model::Recompute;
using scheduler::Access;
using scheduler::Use;

namespace {

/// The largest multiple of `piece` that cuts `size` into parts as even as can be, none of more than
/// `most`; a piece at least.
int64_t even_part(int64_t size, int64_t piece, int64_t most) {
  const int64_t pieces = ceil_div(size, piece);
  const int64_t at_most = std::clamp<int64_t>(most / piece, 1, pieces);
  return std::min(size, ceil_div(pieces, ceil_div(pieces, at_most)) * piece);
}

bool is_attention(StepKind kind) {
  return kind == StepKind::attention_forward || kind == StepKind::attention_again ||
         kind == StepKind::attention_backward || kind == StepKind::attention_finish;
}

}  // namespace

std::vector<BlockCut> block_cut_choices(const model::ModelConfig& config, const BlockCut& pieces) {
  std::vector<BlockCut> choices = {{}};
  if (!pieces.is_cut() || pieces.mlp_rows >= config.intermediate_size) {
    return choices;
  }
  const int64_t per_kv_head = (2 * config.heads / config.kv_heads + 2) * config.head_dim;
  const int64_t rows = ceil_div(config.intermediate_size, pieces.mlp_rows);
  for (int64_t tiles = 1; tiles <= std::min(rows, kMostBlockTiles); ++tiles) {
    const int64_t mlp_rows = even_part(config.intermediate_size, pieces.mlp_rows,
                                       ceil_div(rows, tiles) * pieces.mlp_rows);
    const BlockCut cut{even_part(config.kv_heads, pieces.kv_heads, 3 * mlp_rows / per_kv_head),
                       mlp_rows};
    if (cut != choices.back()) {
      choices.push_back(cut);
    }
  }
  return choices;
}

bool BlockStep::gives_gradient() const {
  return kind == StepKind::block_backward || kind == StepKind::mlp_backward ||
         kind == StepKind::mlp_finish || kind == StepKind::attention_backward ||
         kind == StepKind::attention_finish;
}

BlockOperations::BlockOperations(const ModelLayout& layout, const WorkEstimate& work)
    : ComputeOperations(layout, work) {
  for (size_t i = layout.block(0); i < layout.block(1); ++i) {
    block_ += layout.modules[i].spec.count;
  }
}

std::vector<BlockStep> BlockOperations::forward(int64_t layer) const {
  if (!layout_.cut.is_cut()) {
    return {{StepKind::block_forward, layer}};
  }
  std::vector<BlockStep> steps;
  for (int64_t tile = 0; tile < layout_.attention_tiles; ++tile) {
    steps.push_back({StepKind::attention_forward, layer, tile});
  }
  for (int64_t tile = 0; tile < layout_.mlp_tiles; ++tile) {
    steps.push_back({StepKind::mlp_forward, layer, tile});
  }
  return steps;
}

/// Backwards over the tiles that forward has gone through last.
std::vector<BlockStep> BlockOperations::backward(int64_t layer) const {
  if (!layout_.cut.is_cut()) {
    return {{StepKind::block_backward, layer}};
  }
  std::vector<BlockStep> steps;
  for (int64_t tile = 0; tile < layout_.attention_tiles; ++tile) {
    steps.push_back({StepKind::attention_again, layer, tile});
  }
  for (int64_t tile = layout_.mlp_tiles; tile-- > 0;) {
    steps.push_back({StepKind::mlp_backward, layer, tile});
  }
  steps.push_back({StepKind::mlp_finish, layer});
  for (int64_t tile = layout_.attention_tiles; tile-- > 0;) {
    steps.push_back({StepKind::attention_backward, layer, tile});
  }
  steps.push_back({StepKind::attention_finish, layer});
  return steps;
}

ComputeOperation BlockOperations::operation(const BlockStep& step, int64_t micro_batch,
                                            bool for_backward) const {
  switch (step.kind) {
    case StepKind::block_forward:
      return whole_forward(step.layer, micro_batch, for_backward);
    case StepKind::block_backward:
      return whole_backward(step.layer, micro_batch);
    case StepKind::attention_forward:
      return attention_forward(step, micro_batch, !for_backward);
    case StepKind::attention_again:
      return attention_forward(step, micro_batch, false);
    case StepKind::mlp_forward:
      return mlp_forward(step, micro_batch);
    case StepKind::mlp_backward:
    case StepKind::attention_backward:
      return tile_backward(step, micro_batch);
    case StepKind::mlp_finish:
    case StepKind::attention_finish:
      return finish(step, micro_batch);
    default:
      HR_CHECK(false, "operation kind {} is none of a block", static_cast<int>(step.kind));
  }
}

ComputeOperation BlockOperations::whole_forward(int64_t layer, int64_t micro_batch,
                                                bool for_backward) const {
  const size_t module = layout_.block(layer);
  const auto saved = for_backward ? layout_.saved(layer, micro_batch) : std::nullopt;
  ComputeOperation made{
      layout_.modules[module].spec.name + ".forward",
      work_.block_forward,
      {weights(module), activation(layer, micro_batch, Access::read, !for_backward),
       activation(layer + 1, micro_batch, Access::write)},
      {.kind = StepKind::block_forward,
       .module = module,
       .layer = layer,
       .micro_batch = micro_batch,
       .recompute = saved ? layout_.level_of(layer) : Recompute::block}};
  if (saved) {
    made.uses.push_back(use(*saved, Access::write));
  }
  return made;
}

ComputeOperation BlockOperations::whole_backward(int64_t layer, int64_t micro_batch) const {
  const size_t module = layout_.block(layer);
  ComputeOperation made{
      layout_.modules[module].spec.name + ".backward",
      work_.block_backward[layout_.level_of(layer)],
      {weights(module), activation(layer, micro_batch, Access::read, true),
       use(layout_.activation_gradients[layout_.set_of(micro_batch)], Access::update),
       new_gradient(module, micro_batch)},
      {.kind = StepKind::block_backward,
       .module = module,
       .layer = layer,
       .micro_batch = micro_batch,
       .recompute = layout_.level_of(layer)}};
  if (const auto saved = layout_.saved(layer, micro_batch)) {
    made.uses.push_back(use(*saved, Access::update, true));
  }
  return made;
}

/// Also of the pass that only finds the residual stream behind attention again.
ComputeOperation BlockOperations::attention_forward(const BlockStep& step, int64_t micro_batch,
                                                    bool is_last_use) const {
  const bool is_last = step.tile + 1 == layout_.attention_tiles;
  const bool again = step.kind == StepKind::attention_again;
  const size_t set = layout_.set_of(micro_batch);
  ComputeOperation made =
      start(step, micro_batch, again ? ".again" : ".forward", work_.block_forward);
  made.uses.push_back(activation(step.layer, micro_batch, Access::read, is_last && is_last_use));
  made.uses.push_back(
      use(layout_.block_sums[set], step.tile == 0 ? Access::write : Access::update, is_last));
  if (is_last) {
    made.uses.push_back(again ? use(layout_.residuals[set], Access::write)
                              : activation(step.layer + 1, micro_batch, Access::write));
  }
  return made;
}

/// The residual stream behind attention is where the block's output will be.
ComputeOperation BlockOperations::mlp_forward(const BlockStep& step, int64_t micro_batch) const {
  const bool is_last = step.tile + 1 == layout_.mlp_tiles;
  ComputeOperation made = start(step, micro_batch, ".forward", work_.block_forward);
  made.uses.push_back(
      activation(step.layer + 1, micro_batch, is_last ? Access::update : Access::read));
  made.uses.push_back(use(layout_.block_sums[layout_.set_of(micro_batch)],
                          step.tile == 0 ? Access::write : Access::update, is_last));
  return made;
}

ComputeOperation BlockOperations::tile_backward(const BlockStep& step, int64_t micro_batch) const {
  const bool attention = is_attention(step.kind);
  const bool is_first = step.tile + 1 == (attention ? layout_.attention_tiles : layout_.mlp_tiles);
  const size_t set = layout_.set_of(micro_batch);
  ComputeOperation made =
      start(step, micro_batch, ".backward", work_.block_backward[Recompute::block]);
  made.uses.push_back(attention ? activation(step.layer, micro_batch, Access::read)
                                : use(layout_.residuals[set], Access::read));
  made.uses.push_back(use(layout_.activation_gradients[set], Access::read));
  made.uses.push_back(use(layout_.block_sums[set], is_first ? Access::write : Access::update));
  made.uses.push_back(new_gradient(module_of(step), micro_batch));
  return made;
}

ComputeOperation BlockOperations::finish(const BlockStep& step, int64_t micro_batch) const {
  const size_t norms = norms_of(step);
  const size_t set = layout_.set_of(micro_batch);
  return {
      layout_.modules[norms].spec.name + ".backward",
      work_.embed,
      {weights(norms),
       is_attention(step.kind) ? activation(step.layer, micro_batch, Access::read, true)
                               : use(layout_.residuals[set], Access::read, true),
       use(layout_.block_sums[set], Access::read, true),
       use(layout_.activation_gradients[set], Access::update), new_gradient(norms, micro_batch)},
      {.kind = step.kind, .module = norms, .layer = step.layer, .micro_batch = micro_batch}};
}

size_t BlockOperations::module_of(const BlockStep& step) const {
  return norms_of(step) + 1 + static_cast<size_t>(step.tile);
}

size_t BlockOperations::norms_of(const BlockStep& step) const {
  const size_t half =
      is_attention(step.kind) ? 0 : static_cast<size_t>(layout_.attention_tiles) + 1;
  return layout_.block(step.layer) + half;
}

/// Of a tile; its uses begin with the weights.
ComputeOperation BlockOperations::start(const BlockStep& step, int64_t micro_batch,
                                        const char* what, double seconds) const {
  const size_t module = module_of(step);
  return {layout_.modules[module].spec.name + what,
          seconds * share_of(module),
          {weights(norms_of(step)), weights(module)},
          {.kind = step.kind,
           .module = module,
           .layer = step.layer,
           .tile = step.tile,
           .micro_batch = micro_batch}};
}

/// Share of its block that a module holds.
double BlockOperations::share_of(size_t module) const {
  return static_cast<double>(layout_.modules[module].spec.count.count()) /
         static_cast<double>(block_.count());
}

Use BlockOperations::activation(int64_t i, int64_t micro_batch, Access access, bool discard) const {
  return use(layout_.activations[layout_.set_of(micro_batch)][static_cast<size_t>(i)], access,
             discard);
}

}  // namespace headrace::engine
