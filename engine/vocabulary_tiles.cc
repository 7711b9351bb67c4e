#include "engine/vocabulary_tiles.h"

#include <algorithm>
#include <utility>

namespace headrace::engine {

using scheduler::Access;

std::vector<int64_t> vocab_tile_choices(const model::ModelConfig& config, int64_t logits_tile) {
  const int64_t unit = vocab_tile_unit(config, logits_tile);
  const int64_t units = (config.vocab_size + unit - 1) / unit;
  std::vector<int64_t> choices = {0};
  int64_t last = units;
  for (int64_t tiles = 2; tiles <= std::min(units, kMostVocabTiles); ++tiles) {
    const int64_t size = (units + tiles - 1) / tiles;
    if (std::exchange(last, size) != size) {
      choices.push_back(size * unit);
    }
  }
  return choices;
}

/// Share of the vocabulary that a tile of embedding or head holds.
double VocabularyOperations::share_of(size_t module) const {
  const model::ModuleSpec& spec = layout_.modules[module].spec;
  return static_cast<double>(model::vocabulary_range(spec).count) /
         static_cast<double>(spec.parameters.front().shape.front());
}

ComputeOperation VocabularyOperations::embed_forward(int64_t tile, int64_t micro_batch) const {
  const size_t module = layout_.embed(tile);
  return {layout_.modules[module].spec.name + ".forward",
          work_.embed * share_of(module),
          {weights(module), use(layout_.activations[layout_.set_of(micro_batch)].front(),
                                tile == 0 ? Access::write : Access::update)},
          {.kind = StepKind::embed_forward,
           .module = module,
           .tile = tile,
           .micro_batch = micro_batch}};
}

ComputeOperation VocabularyOperations::embed_backward(int64_t tile, int64_t micro_batch) const {
  const size_t module = layout_.embed(tile);
  return {layout_.modules[module].spec.name + ".backward",
          work_.embed * share_of(module),
          {use(layout_.activation_gradients[layout_.set_of(micro_batch)], Access::read, tile == 0),
           new_gradient(module, micro_batch)},
          {.kind = StepKind::embed_backward,
           .module = module,
           .tile = tile,
           .micro_batch = micro_batch}};
}

ComputeOperation VocabularyOperations::head_train(int64_t micro_batch) const {
  const size_t set = layout_.set_of(micro_batch);
  return {"head.train",
          work_.head,
          {weights(layout_.norm()), weights(layout_.head()),
           use(layout_.activations[set].back(), Access::read, true),
           use(layout_.activation_gradients[set], Access::write),
           new_gradient(layout_.norm(), micro_batch), new_gradient(layout_.head(), micro_batch)},
          {.kind = StepKind::head_train, .module = layout_.head(), .micro_batch = micro_batch}};
}

ComputeOperation VocabularyOperations::head_evaluate() const {
  return {"head.evaluate",
          work_.head,
          {weights(layout_.norm()), weights(layout_.head()),
           use(layout_.activations.front().back(), Access::read, true)},
          {.kind = StepKind::head_evaluate, .module = layout_.head()}};
}

ComputeOperation VocabularyOperations::head_fold(int64_t tile, int64_t micro_batch,
                                                 bool is_last_use) const {
  const size_t module = layout_.head(tile);
  const size_t set = layout_.set_of(micro_batch);
  return {
      "head." + std::to_string(tile) + ".fold",
      work_.head / 4 * share_of(module),
      {weights(layout_.norm()), weights(module),
       use(layout_.activations[set].back(), Access::read, is_last_use),
       use(layout_.softmax[set], tile == 0 ? Access::write : Access::update, is_last_use)},
      {.kind = StepKind::head_fold, .module = module, .tile = tile, .micro_batch = micro_batch}};
}

ComputeOperation VocabularyOperations::head_gradients(int64_t tile, int64_t micro_batch) const {
  const size_t module = layout_.head(tile);
  const size_t set = layout_.set_of(micro_batch);
  const bool is_first = tile == layout_.vocab_tiles - 1;
  return {
      "head." + std::to_string(tile) + ".gradients",
      work_.head * 3 / 4 * share_of(module),
      {weights(layout_.norm()), weights(module), use(layout_.activations[set].back(), Access::read),
       use(layout_.softmax[set], Access::read, tile == 0),
       use(layout_.normed_gradients[set], is_first ? Access::write : Access::update),
       new_gradient(module, micro_batch)},
      {.kind = StepKind::head_gradients,
       .module = module,
       .tile = tile,
       .micro_batch = micro_batch}};
}

ComputeOperation VocabularyOperations::head_finish(int64_t micro_batch) const {
  const size_t norm = layout_.norm();
  const size_t set = layout_.set_of(micro_batch);
  return {"head.finish",
          work_.embed,
          {weights(norm), use(layout_.activations[set].back(), Access::read, true),
           use(layout_.normed_gradients[set], Access::read, true),
           use(layout_.activation_gradients[set], Access::write), new_gradient(norm, micro_batch)},
          {.kind = StepKind::head_finish, .module = norm, .micro_batch = micro_batch}};
}

}  // namespace headrace::engine
