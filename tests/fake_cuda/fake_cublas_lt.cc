#include <cstring>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_stream.h"

namespace headrace::device::testing {

using cuda::LtAlgorithm;
using cuda::LtProduct;
using cuda::Status;
using cuda::StreamHandle;

namespace {

constexpr int kLtInvalidValue = 7;

Status lt(int code) {
  return {Status::Library::cublas_lt, code};
}

}  // namespace

Status FakeCuda::lt_choose(const LtProduct& product, LtAlgorithm* algorithm) {
  if (const Status failed = enter("lt_choose"); !failed.is_ok()) {
    return failed;
  }
  if (!options_.has_algorithms || (product.has_bias && !options_.has_bias)) {
    return lt(cuda::kLtNoneFound);
  }
  const std::lock_guard lock(mutex_);
  products_.push_back(product);
  algorithm->data[0] = products_.size();
  return lt(0);
}

Status FakeCuda::lt_multiply(const LtProduct& p, const LtAlgorithm& algorithm, float alpha,
                             const void* a, const void* b, float beta, void* c, const void* bias,
                             void* workspace, StreamHandle stream) {
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
  const int64_t inner = p.transpose_a ? p.a_rows : p.a_columns;
  const bool shapes_agree = inner == (p.transpose_b ? p.b_columns : p.b_rows) &&
                            p.c_rows == (p.transpose_a ? p.a_columns : p.a_rows) &&
                            p.c_columns == (p.transpose_b ? p.b_rows : p.b_columns) && inner > 0 &&
                            p.c_rows > 0 && p.c_columns > 0;
  const auto is_there = [&](const void* data, int64_t rows, int64_t columns, int64_t ld,
                            DType dtype, uint32_t alignment) {
    const int64_t bytes = ((columns - 1) * ld + rows) * size_of(dtype).count();
    return ld >= rows && reinterpret_cast<uintptr_t>(data) % alignment == 0 &&
           is_on_device(data, static_cast<size_t>(bytes));
  };
  const auto bias_bytes = static_cast<size_t>(p.c_rows * size_of(p.c_type).count());
  if (p.has_bias &&
      (!is_on_device(bias, bias_bytes) || reinterpret_cast<uintptr_t>(bias) % 16 != 0)) {
    return lt(kLtInvalidValue);
  }
  if (!shapes_agree || !is_there(a, p.a_rows, p.a_columns, p.lda, p.ab_type, p.a_alignment) ||
      !is_there(b, p.b_rows, p.b_columns, p.ldb, p.ab_type, p.b_alignment) ||
      !is_there(c, p.c_rows, p.c_columns, p.ldc, p.c_type, p.c_alignment) ||
      !is_on_device(workspace, p.workspace) || reinterpret_cast<uintptr_t>(workspace) % 16 != 0) {
    return lt(kLtInvalidValue);
  }
  found->worker.post([=, this] {
    if (sticky_ == 0) {
      use_memory([&] {
        std::memset(workspace, 0xff, p.workspace);
        multiply(p, alpha, a, b, beta, c, p.has_bias ? bias : nullptr);
      });
    }
  });
  return lt(0);
}

}  // namespace headrace::device::testing
