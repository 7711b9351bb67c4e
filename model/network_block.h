#pragma once

#include <initializer_list>

#include "device/kernels.h"
#include "model/block_flops.h"
#include "model/model_config.h"
#include "model/network.h"
#include "model/network_attention.h"
#include "model/network_layout.h"
#include "model/network_ops.h"
#include "model/recompute.h"

namespace headrace::model {

/// One decoder block: attention and SwiGLU MLP, each behind an RMSNorm and beside a residual.
/// Immutable.
class NetworkBlock {
 public:
  NetworkBlock(const ModelConfig& config, BatchShape shape, DType dtype);

  /// in, out: [tokens, hidden].
  void forward(NetworkOps& ops, const Positions& positions, const void* weights, const void* in,
               void* out, SavedValues saved) const;
  /// Computes again from `in` what is not in `saved`, whose memory it also uses for other values;
  /// din may be dout.
  void backward(NetworkOps& ops, const Positions& positions, const void* weights, const void* in,
                const void* dout, void* din, void* dweights, SavedValues saved) const;

  Bytes saved_bytes(Recompute level) const;
  BlockFlops forward_flops() const;
  BlockFlops backward_flops(Recompute level) const;

 private:
  /// Values between the MLP's norm and down_proj that the backward pass needs.
  struct Mlp {
    device::Matrix gate, up;
  };

  Mlp take_mlp(WorkspaceStack& memory) const;
  WorkspaceStack open(SavedValues saved) const;
  NetworkAttention::Weights attention_weights(const PackedVector& weights) const;
  void attention_forward(NetworkOps& ops, const Positions& positions, const PackedVector& weights,
                         const device::Matrix& x, const NetworkAttention::Values& attention) const;
  void gate_and_up(NetworkOps& ops, const PackedVector& weights, const device::Matrix& x,
                   const Mlp& mlp) const;
  void norm(NetworkOps& ops, const device::Matrix& x, const void* weight, const device::Matrix& y,
            float* inv_rms) const;
  void mlp_backward(NetworkOps& ops, const PackedVector& weights, const PackedVector& dweights,
                    const device::Matrix& h, const Mlp& mlp, const device::Matrix& dout,
                    const device::Matrix& dh, const device::Matrix& x, const float* inv_rms) const;
  void attention_backward(NetworkOps& ops, const Positions& positions, const PackedVector& weights,
                          const PackedVector& dweights, const device::Matrix& in,
                          const device::Matrix& dh, const NetworkAttention::Values& attention,
                          const device::Matrix& x, float* inv_rms) const;
  void add_outputs(std::initializer_list<const LinearLayout*> layers, BlockFlops& flops) const;
  void add_attention_layers(BlockFlops& flops) const;
  double attention_flops() const;

  ModelConfig config_;
  BatchShape shape_;
  DType dtype_;
  BlockLayout layout_;
  NetworkAttention attention_;
};

}  // namespace headrace::model
