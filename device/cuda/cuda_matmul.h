#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "device/cuda/cuda_status.h"
#include "device/kernels.h"

namespace headrace::device::cuda {

/// Matrix products of the CUDA device (Kernels::matmul), by cuBLASLt with fp32 accumulation. The
/// algorithm for a product is chosen once and kept; one that cuBLASLt has none for is computed by a
/// kernel of our own, which is slow and said once. Thread-safe.
class CudaMatmul {
 public:
  CudaMatmul(const Gpu& gpu, bool allow_tf32) : gpu_(gpu), allow_tf32_(allow_tf32) {}

  /// Arguments as of Kernels::matmul, checked and not empty. `bias`: null, or added to every row of
  /// c, if it can be in the same pass; returns whether it was.
  bool post(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
            const Matrix& c, bool accumulate, const void* bias, Workspace scratch);
  static Bytes scratch(const Matrix& c);
  /// The same of Kernels::matmul_scaled. CudaError where cuBLASLt has no algorithm: nothing else
  /// would be as fast as 16 bits.
  bool post_scaled(Stream& stream, const ScaledMatrix& a, const ScaledMatrix& b, const void* bias,
                   const Matrix& c, bool accumulate, Workspace scratch);

 private:
  struct Choice {
    bool is_found = false;
    LtAlgorithm algorithm;
  };

  /// Without a bias where there is an algorithm for that alone, which changes the product.
  Choice choose_with_bias(LtProduct& product, const void* bias);
  Choice choose(const LtProduct& product);
  void multiply(Stream& stream, const LtProduct& product, const LtAlgorithm& algorithm,
                bool accumulate, LtOperands operands, Workspace scratch);

  const Gpu& gpu_;
  bool allow_tf32_;
  std::mutex mutex_;
  std::vector<std::pair<LtProduct, Choice>> choices_;
};

/// The row-major product in cuBLASLt's column-major terms. A row-major matrix is the transpose of
/// the column-major one that lies in the same memory, so c^T = op(b)^T op(a)^T: b comes first, and
/// what is transposed stays transposed.
LtProduct lt_product(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                     const Matrix& c, size_t workspace, bool allow_tf32);

}  // namespace headrace::device::cuda
