#include <cstring>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_stream.h"

namespace headrace::device::testing {

using cuda::LtAlgorithm;
using cuda::LtOperands;
using cuda::LtProduct;
using cuda::Status;
using cuda::StreamHandle;

namespace {

constexpr int kLtInvalidValue = 7;

Status lt(int code) {
  return {Status::Library::cublas_lt, code};
}

bool is_scaled(const LtProduct& p) {
  return p.ab_type == DType::u8;
}

/// What cuBLASLt asks of products in e4m3: operands transposed and plain, 16 bytes everywhere, and
/// no bias beside a result in fp32 (it would be one in bf16).
bool is_fit_for_fp8(const LtProduct& p) {
  const int64_t ldc_bytes = p.ldc * size_of(p.c_type).count();
  const bool are_wide = p.a_rows % 16 == 0 && p.a_columns % 16 == 0 && p.b_columns % 16 == 0 &&
                        p.lda % 16 == 0 && p.ldb % 16 == 0 && ldc_bytes % 16 == 0;
  const bool are_aligned = p.a_alignment == 16 && p.b_alignment == 16 && p.c_alignment == 16;
  return p.transpose_a && !p.transpose_b && are_wide && are_aligned &&
         !(p.has_bias && p.c_type == DType::f32);
}

bool do_shapes_agree(const LtProduct& p) {
  const int64_t inner = p.transpose_a ? p.a_rows : p.a_columns;
  return inner == (p.transpose_b ? p.b_columns : p.b_rows) &&
         p.c_rows == (p.transpose_a ? p.a_columns : p.a_rows) &&
         p.c_columns == (p.transpose_b ? p.b_rows : p.b_columns) && inner > 0 && p.c_rows > 0 &&
         p.c_columns > 0;
}

}  // namespace

Status FakeCuda::lt_choose(const LtProduct& product, LtAlgorithm* algorithm) {
  if (const Status failed = enter("lt_choose"); !failed.is_ok()) {
    return failed;
  }
  if (is_scaled(product) && (options_.compute_capability < 89 || !is_fit_for_fp8(product))) {
    return lt(cuda::kLtNotSupported);
  }
  if (!options_.has_algorithms || (product.has_bias && !options_.has_bias)) {
    return lt(cuda::kLtNoneFound);
  }
  const std::lock_guard lock(mutex_);
  products_.push_back(product);
  algorithm->data[0] = products_.size();
  return lt(0);
}

bool FakeCuda::are_there(const LtProduct& p, const LtOperands& operands) const {
  const auto is_there = [&](const void* data, int64_t rows, int64_t columns, int64_t ld,
                            DType dtype, uint32_t alignment) {
    const int64_t bytes = ((columns - 1) * ld + rows) * size_of(dtype).count();
    return ld >= rows && reinterpret_cast<uintptr_t>(data) % alignment == 0 &&
           is_on_device(data, static_cast<size_t>(bytes));
  };
  const auto is_scale_right = [&](const float* scale) {
    return is_scaled(p) ? is_on_device(scale, sizeof(float)) : scale == nullptr;
  };
  const auto bias_bytes = p.c_rows * size_of(p.c_type).count();
  const bool is_bias_right =
      !p.has_bias || (is_on_device(operands.bias, static_cast<size_t>(bias_bytes)) &&
                      reinterpret_cast<uintptr_t>(operands.bias) % 16 == 0);
  return is_there(operands.a, p.a_rows, p.a_columns, p.lda, p.ab_type, p.a_alignment) &&
         is_there(operands.b, p.b_rows, p.b_columns, p.ldb, p.ab_type, p.b_alignment) &&
         is_there(operands.c, p.c_rows, p.c_columns, p.ldc, p.c_type, p.c_alignment) &&
         is_scale_right(operands.a_scale) && is_scale_right(operands.b_scale) && is_bias_right &&
         is_on_device(operands.workspace, p.workspace) &&
         reinterpret_cast<uintptr_t>(operands.workspace) % 16 == 0;
}

Status FakeCuda::lt_multiply(const LtProduct& p, const LtAlgorithm& algorithm, float alpha,
                             float beta, const LtOperands& operands, StreamHandle stream) {
  if (const Status failed = enter("lt_multiply"); !failed.is_ok()) {
    return failed;
  }
  Stream* const found = find(stream);
  if (found == nullptr) {
    return lt(kLtInvalidValue);
  }
  {
    const std::lock_guard lock(mutex_);
    const uint64_t index = algorithm.data[0];
    if (index == 0 || index > products_.size() || products_[index - 1] != p) {
      return lt(kLtInvalidValue);  // chosen for another product
    }
  }
  if (!do_shapes_agree(p) || !are_there(p, operands)) {
    return lt(kLtInvalidValue);
  }
  return submit(*found, [=, this] {
    if (sticky_ == 0) {
      use_memory([&] {
        std::memset(operands.workspace, 0xff, p.workspace);
        multiply(p, alpha, beta, operands);
      });
    }
  });
}

}  // namespace headrace::device::testing
