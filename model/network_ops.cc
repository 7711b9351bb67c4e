#include "model/network_ops.h"

namespace headrace::model {

using device::Kernels;
using device::Matrix;
using device::ScaledMatrix;
using device::Stream;
using device::Workspace;

Matrix take_matrix(WorkspaceStack& memory, DType dtype, int64_t rows, int64_t columns) {
  const Bytes size = bytes_for(Elements(rows) * columns, dtype);
  return {memory.take(size), dtype, rows, columns, columns};
}

float* take_floats(WorkspaceStack& memory, int64_t count) {
  return static_cast<float*>(memory.take(bytes_for(Elements(count), DType::f32)));
}

void NetworkOps::matmul(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                        const Matrix& c, bool accumulate) {
  const Bytes scratch_size = kernels_.matmul_scratch(a, transpose_a, b, transpose_b, c);
  post_with_scratch(scratch_size, [&](Kernels& kernels, Stream& stream, Workspace scratch) {
    kernels.matmul(stream, a, transpose_a, b, transpose_b, c, accumulate, scratch);
  });
}

ScaledMatrix NetworkOps::round(const Matrix& matrix) {
  ScaledMatrix rounded;
  rounded.codes = memory_.take(bytes_for(Elements(matrix.rows) * matrix.columns, DType::u8));
  rounded.scale = take_floats(1);
  rounded.rows = matrix.rows;
  rounded.columns = matrix.columns;
  post_with_scratch(device::kQuantizeScratch,
                    [&](Kernels& kernels, Stream& stream, Workspace scratch) {
                      kernels.quantize(stream, matrix, rounded, scratch);
                    });
  return rounded;
}

LinearInput NetworkOps::linear_input(const Matrix& x) {
  return {x, fp8_forward_ ? round(x) : ScaledMatrix()};
}

void NetworkOps::multiply(const LinearInput& x, const Matrix& weight, const void* bias,
                          const Matrix& out, bool accumulate) {
  if (fp8_forward_) {
    const WorkspaceStack::Scope scope(memory_);
    const ScaledMatrix rounded = round(weight);
    post_with_scratch(kernels_.matmul_scaled_scratch(x.rounded, rounded, out),
                      [&](Kernels& kernels, Stream& stream, Workspace scratch) {
                        kernels.matmul_scaled(stream, x.rounded, rounded, bias, out, accumulate,
                                              scratch);
                      });
    return;
  }
  if (bias == nullptr) {
    matmul(x.x, false, weight, true, out, accumulate);
    return;
  }
  post_with_scratch(kernels_.matmul_scratch(x.x, false, weight, true, out),
                    [&](Kernels& kernels, Stream& stream, Workspace scratch) {
                      kernels.matmul_bias(stream, x.x, false, weight, true, bias, out, scratch);
                    });
}

void NetworkOps::linear(const LinearInput& x, const PackedVector& weights,
                        const LinearLayout& layer, const Matrix& out) {
  multiply(x, weights.weight(layer), layer.bias ? weights.at(*layer.bias) : nullptr, out, false);
}

void NetworkOps::linear(const Matrix& x, const PackedVector& weights, const LinearLayout& layer,
                        const Matrix& out) {
  const WorkspaceStack::Scope scope(memory_);
  linear(linear_input(x), weights, layer, out);
}

void NetworkOps::linear_part(const Matrix& x, const PackedVector& weights,
                             const LinearLayout& layer, const Matrix& sum, bool accumulate) {
  const WorkspaceStack::Scope scope(memory_);
  multiply(linear_input(x), weights.weight(layer), nullptr, sum, accumulate);
}

void NetworkOps::linear_input_gradient(const Matrix& dout, const PackedVector& weights,
                                       const LinearLayout& layer, const Matrix& dx,
                                       bool accumulate) {
  matmul(dout, false, weights.weight(layer), false, dx, accumulate);
}

void NetworkOps::linear_weight_gradient(const Matrix& dout, const Matrix& x,
                                        const LinearLayout& layer, const PackedVector& dweights) {
  matmul(dout, true, x, false, dweights.weight(layer), false);
  if (layer.bias) {
    post([&](Kernels& kernels, Stream& stream) {
      kernels.bias_gradient(stream, dout, dweights.at(*layer.bias));
    });
  }
}

void NetworkOps::rms_norm(const Matrix& x, const void* weight, double epsilon, const Matrix& y,
                          float* inv_rms) {
  post([&](Kernels& kernels, Stream& stream) {
    kernels.rms_norm_forward(stream, x, weight, static_cast<float>(epsilon), y, inv_rms);
  });
}

void NetworkOps::rms_norm_backward(const Matrix& dy, const Matrix& x, const void* weight,
                                   const float* inv_rms, const Matrix& dx, bool accumulate_dx,
                                   void* dweight) {
  const Bytes scratch_size = kernels_.rms_norm_backward_scratch(x.rows, x.columns);
  post_with_scratch(scratch_size, [&](Kernels& kernels, Stream& stream, Workspace scratch) {
    kernels.rms_norm_backward(stream, dy, x, weight, inv_rms, dx, accumulate_dx, dweight, scratch);
  });
}

void NetworkOps::zero_gaps(const std::vector<Gap>& gaps, const PackedVector& vector) {
  post([&](Kernels&, Stream& stream) {
    for (const Gap& gap : gaps) {
      stream.fill_zero_async(vector.at(gap.offset), bytes_for(gap.count, dtype_));
    }
  });
}

}  // namespace headrace::model
