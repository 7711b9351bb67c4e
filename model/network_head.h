#pragma once

#include <cstdint>
#include <vector>

#include "device/kernels.h"
#include "model/model_config.h"
#include "model/network.h"
#include "model/network_layout.h"
#include "model/network_ops.h"

namespace headrace::model {

/// Final norm, vocabulary projection and cross-entropy, a tile of the vocabulary at a time: the
/// whole [tokens, vocab] matrix never exists. A first sweep folds every tile into a running softmax
/// (Milakov, Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867); a second
/// computes the tiles again for their gradients, the last one first.
///
/// The sweeps may be interrupted between tiles: fold() and tile_gradients() work on the rows that
/// one packed vector holds, whole tiles but for the end of the vocabulary. forward() and
/// forward_backward() do the same work at one go, so that the bits do not depend on how the rows
/// are cut. Immutable.
class NetworkHead {
 public:
  NetworkHead(const ModelConfig& config, BatchShape shape, DType dtype, int64_t vocab_tile);

  struct Inputs {
    const void* norm_weights = nullptr;
    const void* head_weights = nullptr;  ///< packed rows
    const void* in = nullptr;            ///< [tokens, hidden]
    const int32_t* labels = nullptr;
    VocabularyRange rows = {};  ///< those of head_weights
  };
  /// All overwritten; gradients of loss_sum * scale.
  struct Gradients {
    float scale = 1;
    void* in = nullptr;
    void* norm_weights = nullptr;
    void* head_weights = nullptr;
  };

  /// With all rows.
  void forward(NetworkOps& ops, const Inputs& inputs, double* loss_sum) const;
  void forward_backward(NetworkOps& ops, const Inputs& inputs, double* loss_sum,
                        const Gradients& gradients) const;

  /// Folds rows into `softmax` ([3, tokens] fp32). They come in order: the first ones start it,
  /// with the last ones it is complete and the loss known.
  void fold(NetworkOps& ops, const Inputs& inputs, float* softmax, double* loss_sum) const;
  /// With the complete softmax: overwrites the gradient of the rows and adds to that of the normed
  /// input, `dx` ([tokens, hidden] fp32). They come in reverse order: the last ones begin dx.
  void tile_gradients(NetworkOps& ops, const Inputs& inputs, float* softmax, float scale, float* dx,
                      void* dhead_weights) const;
  /// Takes the complete dx through the norm; of the inputs, labels and rows are not used.
  void finish(NetworkOps& ops, const Inputs& inputs, const float* dx, void* din,
              void* dnorm_weights) const;

  int64_t vocab_tile() const { return vocab_tile_; }
  VocabularyRange all_rows() const { return {0, config_.vocab_size}; }
  double flops() const;  ///< of forward_backward()

 private:
  struct Sweep;
  Sweep start(NetworkOps& ops, const Inputs& inputs, float* softmax) const;
  device::CrossEntropyState state_in(float* softmax) const;
  void norm_forward(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep) const;
  void compute_logits(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                      int64_t tile) const;
  void sweep_loss(NetworkOps& ops, const Inputs& inputs, Sweep& sweep, double* loss_sum) const;
  void sweep_gradients(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep, float scale,
                       const device::Matrix& dx, void* dhead_weights) const;
  void norm_backward(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep, device::Matrix dx,
                     void* din, void* dnorm_weights) const;
  int64_t first_tile(const VocabularyRange& rows) const { return rows.first / vocab_tile_; }
  int64_t last_tile(const VocabularyRange& rows) const { return (rows.end() - 1) / vocab_tile_; }
  int64_t first_row(int64_t tile) const { return tile * vocab_tile_; }
  int64_t rows_of(int64_t tile) const;
  bool has_end(const VocabularyRange& rows) const { return rows.end() == config_.vocab_size; }
  device::Matrix tile_rows(const void* packed, const VocabularyRange& rows, int64_t tile) const;
  device::Matrix tile_view(const device::Matrix& buffer, int64_t tile) const;

  ModelConfig config_;
  BatchShape shape_;
  DType dtype_;
  int64_t vocab_tile_;
  std::vector<Gap> norm_gaps_;
};

}  // namespace headrace::model
