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
/// computes the tiles again for their gradients. Immutable.
class NetworkHead {
 public:
  NetworkHead(const ModelConfig& config, BatchShape shape, DType dtype, int64_t vocab_tile);

  struct Inputs {
    const void* norm_weights = nullptr;
    const void* head_weights = nullptr;
    const void* in = nullptr;  ///< [tokens, hidden]
    const int32_t* labels = nullptr;
  };
  /// All overwritten; gradients of loss_sum * scale.
  struct Gradients {
    float scale = 1;
    void* in = nullptr;
    void* norm_weights = nullptr;
    void* head_weights = nullptr;
  };

  void forward(NetworkOps& ops, const Inputs& inputs, double* loss_sum) const;
  void forward_backward(NetworkOps& ops, const Inputs& inputs, double* loss_sum,
                        const Gradients& gradients) const;
  double flops() const;

 private:
  struct Sweep;
  Sweep start(NetworkOps& ops, const Inputs& inputs) const;
  void compute_logits(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                      int64_t tile) const;
  void sweep_loss(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                  double* loss_sum) const;
  device::Matrix sweep_gradients(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                                 const Gradients& gradients) const;
  int64_t tiles() const;
  int64_t first_row(int64_t tile) const { return tile * vocab_tile_; }
  int64_t rows_of(int64_t tile) const;
  device::Matrix tile_rows(const void* packed, int64_t tile) const;
  device::Matrix tile_view(const device::Matrix& buffer, int64_t tile) const;

  ModelConfig config_;
  BatchShape shape_;
  DType dtype_;
  int64_t vocab_tile_;
  std::vector<Gap> norm_gaps_;
  std::vector<Gap> head_gaps_;
};

}  // namespace headrace::model
