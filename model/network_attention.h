#pragma once

#include "device/kernels.h"
#include "model/model_config.h"
#include "model/network.h"
#include "model/network_layout.h"
#include "model/network_ops.h"

namespace headrace::model {

/// What the positions of a batch mean; on the device.
struct Positions {
  const float* cos_sin = nullptr;   ///< rope table
  const int32_t* begins = nullptr;  ///< of their documents; null: of their sequences
  device::Visibility visible;
};

/// Some heads of a block, between the block's normed input and o_proj: key-value heads with the
/// query heads that read them. Immutable.
class NetworkAttention {
 public:
  NetworkAttention(const ModelConfig& config, BatchShape shape, DType dtype, int64_t kv_heads);

  struct Weights {
    PackedVector packed;
    LinearLayout q, k, v;
    const void* q_norm = nullptr;  ///< with ModelConfig::qk_norm only, as k_norm
    const void* k_norm = nullptr;
  };
  /// What the backward pass needs.
  struct Values {
    device::Matrix q, k, v;  ///< as the attention kernel reads them
    device::Matrix out;
    device::Matrix q_raw, k_raw;  ///< before q_norm and k_norm; q and k themselves without
    float* q_inv_rms = nullptr;
    float* k_inv_rms = nullptr;
    float* log_sum_exp = nullptr;
  };
  /// Of the projections' outputs.
  struct Gradients {
    device::Matrix q, k, v;
  };

  Values take(WorkspaceStack& memory) const;
  /// Fills `values` from the normed input x.
  void forward(NetworkOps& ops, const Positions& positions, const Weights& weights,
               const LinearInput& x, const Values& values) const;
  /// From the gradient of values.out; q and k are overwritten. Takes memory that the caller's scope
  /// gives back. dq_norm and dk_norm are overwritten, with ModelConfig::qk_norm only.
  Gradients backward(NetworkOps& ops, const Positions& positions, const Weights& weights,
                     const Values& values, const device::Matrix& dout, void* dq_norm,
                     void* dk_norm) const;

  int64_t q_size() const { return attention_shape_.q_stride; }   ///< columns of q and out
  int64_t kv_size() const { return attention_shape_.k_stride; }  ///< of k and v

 private:
  device::AttentionShape shape_of(const Positions& positions) const;
  void rotate(device::Kernels& kernels, device::Stream& stream, const Positions& positions,
              const device::Matrix& x, bool inverse) const;
  device::Matrix by_head(const device::Matrix& x) const;

  ModelConfig config_;
  BatchShape shape_;
  DType dtype_;
  device::AttentionShape attention_shape_;
};

}  // namespace headrace::model
