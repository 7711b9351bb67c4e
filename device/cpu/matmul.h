#pragma once

#include "device/cpu/tile_product.h"
#include "device/kernels.h"

namespace headrace::device::cpu {

/// Matrix products of the CPU device (Kernels::matmul), on the OpenMP threads of the calling
/// thread.
///
/// c is cut into tiles and the inner dimension into chunks, by rules that look at the shape only.
/// For each tile the panels of a and b are packed, 64-byte aligned, into scratch (widened to fp32
/// unless bf16 instructions are used) and multiplied by one-threaded oneDNN code; chunks are added
/// in order in fp32 and the tile is rounded once into c. So the bits depend neither on the number
/// of threads nor on addresses and strides, and oneDNN allocates nothing but small handles.
/// Thread-safe; keeps a reference to the cache.
class CpuMatmul {
 public:
  /// `use_bf16_instructions`: for bf16 operands; see tile_product.h.
  CpuMatmul(TileProductCache& products, bool use_bf16_instructions)
      : products_(products), use_bf16_instructions_(use_bf16_instructions) {}

  /// Arguments as of Kernels::matmul, checked by the caller (kernel_checks.h); a and b may also be
  /// u8, codes in e4m3. The product is multiplied by `scale` before it is added and rounded.
  void run(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b, const Matrix& c,
           bool accumulate, Workspace scratch, float scale = 1) const;
  /// Exactly what run() needs; depends on shapes and dtypes only.
  Bytes scratch(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                const Matrix& c) const;

 private:
  TileProductCache& products_;
  bool use_bf16_instructions_;
};

}  // namespace headrace::device::cpu
