#pragma once

#include "device/cpu/tile_product.h"
#include "device/kernels.h"

namespace headrace::device::cpu {

/// Causal grouped-query attention of the CPU device, on the OpenMP threads of the calling thread:
/// FlashAttention's tiling (Dao et al., 2022; Dao, 2023). A tile holds a block of queries of all
/// heads that share a key/value head, by a block of keys; scores, statistics and sums are fp32,
/// tiles above the diagonal or that no query sees are skipped. The cut depends on the shape only
/// and every sum has a fixed order, so the bits depend neither on the number of threads nor on
/// addresses. Arguments are those of Kernels, checked by the caller (kernel_checks.h). Thread-safe;
/// keeps a reference to the cache.
class CpuAttention {
 public:
  explicit CpuAttention(TileProductCache& products) : products_(products) {}

  void forward(const AttentionShape& shape, DType dtype, const void* q, const void* k,
               const void* v, void* out, float* log_sum_exp, Workspace scratch) const;
  void backward(const AttentionShape& shape, DType dtype, const void* q, const void* k,
                const void* v, const void* out, const void* dout, const float* log_sum_exp,
                void* dq, void* dk, void* dv, Workspace scratch) const;
  /// Exactly what the larger of the two needs.
  Bytes scratch(const AttentionShape& shape) const;

 private:
  TileProductCache& products_;
};

}  // namespace headrace::device::cpu
