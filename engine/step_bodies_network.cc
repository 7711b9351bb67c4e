#include "base/check.h"
#include "engine/step_bodies.h"

namespace headrace::engine {

namespace {

/// Where the operation saves values at all, they are its last use.
model::SavedValues saved_values(const StepOperation& step, UseBytes uses, size_t use) {
  return {step.recompute, step.recompute == model::Recompute::block ? nullptr : uses[use].data()};
}

}  // namespace

void StepBodies::upload_tokens(const model::TokenBatch& batch) {
  const Bytes size = bytes_for(Elements(static_cast<int64_t>(batch.ids.size())), DType::i32);
  HR_CHECK(static_cast<int64_t>(batch.ids.size()) == network_.shape().tokens() &&
               batch.labels.size() == batch.ids.size(),
           "batch of {} tokens and {} labels for a shape of {}", batch.ids.size(),
           batch.labels.size(), network_.shape().tokens());
  stream_.copy_async(scratch_.tokens, batch.ids.data(), size);
  stream_.copy_async(scratch_.tokens + size.count(), batch.labels.data(), size);
}

/// Packed batches take turns where micro-batches go through a layer one after the other.
void StepBodies::set_documents(const model::TokenBatch& batch) {
  const model::BatchShape shape = network_.shape();
  const auto expected = static_cast<size_t>(shape.is_packed ? shape.tokens() : 0);
  const model::DocumentBorders& documents = batch.documents;
  for (const auto* part : {&documents.begins, &documents.seen_from, &documents.seen_until}) {
    HR_CHECK(part->size() == expected,
             "a batch with the documents of {} tokens, where {} are expected", part->size(),
             expected);
  }
  const int32_t* const begins = documents.begins.data();
  if (shape.is_packed && begins != documents_there_) {
    network_.set_documents(stream_, documents);
    documents_there_ = begins;
  }
}

void StepBodies::compute(const StepOperation& step, UseBytes uses, const model::TokenBatch& batch,
                         float gradient_scale, double* loss_sum) {
  const auto* ids = reinterpret_cast<const int32_t*>(scratch_.tokens);
  const int32_t* labels = ids + network_.shape().tokens();
  const device::Workspace& workspace = scratch_.workspace;
  set_documents(batch);
  const auto fetch_loss = [&] {
    stream_.copy_async(loss_sum, scratch_.loss_sum, Bytes(sizeof(double)));
  };
  switch (step.kind) {
    case StepKind::embed_forward:
      upload_tokens(batch);
      network_.embed_forward(stream_, rows_of(step), uses[0].data(), ids, uses[1].data(),
                             workspace);
      return;
    case StepKind::block_forward:
      network_.block_forward(stream_, uses[0].data(), uses[1].data(), uses[2].data(),
                             saved_values(step, uses, 3), workspace);
      return;
    case StepKind::head_train:
      upload_tokens(batch);
      network_.head_forward_backward(stream_, uses[0].data(), uses[1].data(), uses[2].data(),
                                     labels, gradient_scale, scratch_.loss_sum, uses[3].data(),
                                     uses[4].data(), uses[5].data(), workspace);
      fetch_loss();
      return;
    case StepKind::head_evaluate:
      network_.head_forward(stream_, uses[0].data(), uses[1].data(), uses[2].data(), labels,
                            scratch_.loss_sum, workspace);
      fetch_loss();
      return;
    case StepKind::head_fold:
      upload_tokens(batch);
      network_.head_fold(stream_, head_tile(step, uses, labels), scratch_.loss_sum, workspace);
      if (gives_loss(step)) {
        fetch_loss();
      }
      return;
    case StepKind::head_gradients:
      upload_tokens(batch);
      network_.head_tile_gradients(stream_, head_tile(step, uses, labels), gradient_scale,
                                   floats(uses[4]), uses[5].data(), workspace);
      return;
    case StepKind::head_finish:
      network_.head_finish(stream_, uses[0].data(), uses[1].data(), floats(uses[2]), uses[3].data(),
                           uses[4].data(), workspace);
      return;
    case StepKind::block_backward:
      network_.block_backward(stream_, uses[0].data(), uses[1].data(), uses[2].data(),
                              uses[2].data(), uses[3].data(), saved_values(step, uses, 4),
                              workspace);
      return;
    case StepKind::embed_backward:
      upload_tokens(batch);
      network_.embed_backward(stream_, rows_of(step), ids, uses[0].data(), uses[1].data(),
                              workspace);
      return;
    default:
      compute_tile(step, uses);
  }
}

/// Of a block that is cut.
void StepBodies::compute_tile(const StepOperation& step, UseBytes uses) {
  const device::Workspace& workspace = scratch_.workspace;
  switch (step.kind) {
    case StepKind::attention_forward:
    case StepKind::attention_again:
      network_.attention_tile_forward(stream_, block_tile(step, uses), uses[2].data(),
                                      floats(uses[3]), uses.size() > 4 ? uses[4].data() : nullptr,
                                      workspace);
      return;
    case StepKind::mlp_forward:
      network_.mlp_tile_forward(stream_, block_tile(step, uses), uses[2].data(), floats(uses[3]),
                                uses[2].data(), workspace);
      return;
    case StepKind::mlp_backward:
      network_.mlp_tile_backward(stream_, block_tile(step, uses), uses[2].data(), uses[3].data(),
                                 floats(uses[4]), uses[5].data(), workspace);
      return;
    case StepKind::attention_backward:
      network_.attention_tile_backward(stream_, block_tile(step, uses), uses[2].data(),
                                       uses[3].data(), floats(uses[4]), uses[5].data(), workspace);
      return;
    case StepKind::mlp_finish:
      network_.mlp_finish(stream_, uses[0].data(), uses[1].data(), floats(uses[2]), uses[3].data(),
                          uses[4].data(), workspace);
      return;
    case StepKind::attention_finish:
      network_.attention_finish(stream_, uses[0].data(), uses[1].data(), floats(uses[2]),
                                uses[3].data(), uses[4].data(), workspace);
      return;
    default:
      HR_CHECK(false, "operation kind {} does not compute", static_cast<int>(step.kind));
  }
}

model::Network::BlockTile StepBodies::block_tile(const StepOperation& step, UseBytes uses) const {
  const bool is_mlp = step.kind == StepKind::mlp_forward || step.kind == StepKind::mlp_backward;
  const auto range_of = is_mlp ? model::mlp_range : model::attention_range;
  return {range_of(network_.config(), layout_.cut, step.tile), uses[0].data(), uses[1].data()};
}

model::VocabularyRange StepBodies::rows_of(const StepOperation& step) const {
  return model::vocabulary_range(layout_.modules[step.module].spec);
}

model::Network::HeadTile StepBodies::head_tile(const StepOperation& step, UseBytes uses,
                                               const int32_t* labels) const {
  return {rows_of(step), uses[0].data(), uses[1].data(), uses[2].data(), labels, floats(uses[3])};
}

}  // namespace headrace::engine
