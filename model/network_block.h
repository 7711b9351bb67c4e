#pragma once

#include <initializer_list>

#include "device/kernels.h"
#include "model/model_config.h"
#include "model/network.h"
#include "model/network_layout.h"
#include "model/network_ops.h"
#include "model/recompute.h"

namespace headrace::model {

/// One decoder block: attention and SwiGLU MLP, each behind an RMSNorm and beside a residual.
/// Immutable.
class NetworkBlock {
 public:
  NetworkBlock(const ModelConfig& config, BatchShape shape, DType dtype);

  /// cos_sin: rope table on the device. in, out: [tokens, hidden].
  void forward(NetworkOps& ops, const float* cos_sin, const void* weights, const void* in,
               void* out, SavedValues saved) const;
  /// Computes again from `in` what is not in `saved`, whose memory it also uses for other values;
  /// din may be dout.
  void backward(NetworkOps& ops, const float* cos_sin, const void* weights, const void* in,
                const void* dout, void* din, void* dweights, SavedValues saved) const;

  Bytes saved_bytes(Recompute level) const;
  double forward_flops() const;
  double backward_flops(Recompute level) const;

 private:
  /// Values between q_proj and o_proj that the backward pass needs.
  struct Attention {
    device::Matrix q, k, v;  ///< as the attention kernel reads them
    device::Matrix out;
    device::Matrix q_raw, k_raw;  ///< before q_norm and k_norm; q and k themselves without
    float* q_inv_rms = nullptr;
    float* k_inv_rms = nullptr;
    float* log_sum_exp = nullptr;
  };
  /// Values between the MLP's norm and down_proj that the backward pass needs.
  struct Mlp {
    device::Matrix gate, up;
  };

  Attention take_attention(WorkspaceStack& memory) const;
  Mlp take_mlp(WorkspaceStack& memory) const;
  WorkspaceStack open(SavedValues saved) const;
  void attend(NetworkOps& ops, const float* cos_sin, const PackedVector& weights,
              const device::Matrix& x, const Attention& attention) const;
  void gate_and_up(NetworkOps& ops, const PackedVector& weights, const device::Matrix& x,
                   const Mlp& mlp) const;
  void norm(NetworkOps& ops, const device::Matrix& x, const void* weight, const device::Matrix& y,
            float* inv_rms) const;
  void mlp_backward(NetworkOps& ops, const PackedVector& weights, const PackedVector& dweights,
                    const device::Matrix& h, const Mlp& mlp, const device::Matrix& dout,
                    const device::Matrix& dh, const device::Matrix& x, const float* inv_rms) const;
  void attention_backward(NetworkOps& ops, const float* cos_sin, const PackedVector& weights,
                          const PackedVector& dweights, const device::Matrix& in,
                          const device::Matrix& dh, const Attention& attention,
                          const device::Matrix& x, float* inv_rms) const;
  void heads_backward(NetworkOps& ops, const float* cos_sin, const PackedVector& weights,
                      const PackedVector& dweights, const Attention& attention,
                      const device::Matrix& dattended, device::Matrix& dq, device::Matrix& dk,
                      const device::Matrix& dv) const;
  device::Matrix by_head(const device::Matrix& x) const;
  double linear_flops() const;
  double linear_flops(std::initializer_list<const LinearLayout*> layers) const;
  double attention_flops() const;

  ModelConfig config_;
  BatchShape shape_;
  DType dtype_;
  BlockLayout layout_;
  device::AttentionShape attention_shape_;
};

}  // namespace headrace::model
