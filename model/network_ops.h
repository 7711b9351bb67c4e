#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "device/kernels.h"
#include "model/network_layout.h"
#include "model/network_memory.h"

namespace headrace::model {

/// Dense matrices and fp32 vectors from a stack.
device::Matrix take_matrix(WorkspaceStack& memory, DType dtype, int64_t rows, int64_t columns);
float* take_floats(WorkspaceStack& memory, int64_t count);

/// What linear layers read: x, and the same rounded to e4m3 where they compute in that.
struct LinearInput {
  device::Matrix x;
  device::ScaledMatrix rounded = {};
};

/// The network's view of the device's kernels: one dtype, one stream, scratch from one stack.
/// Without a stream it plans: memory is counted, nothing is posted. Stream and stack must outlive
/// it.
class NetworkOps {
 public:
  /// `fp8_forward`: linear() computes in e4m3.
  NetworkOps(device::Kernels& kernels, DType dtype, bool fp8_forward, device::Stream* stream,
             WorkspaceStack& memory)
      : kernels_(kernels),
        dtype_(dtype),
        fp8_forward_(fp8_forward),
        stream_(stream),
        memory_(memory) {}

  DType dtype() const { return dtype_; }
  WorkspaceStack& memory() { return memory_; }
  device::Matrix take_matrix(int64_t rows, int64_t columns) {
    return take_matrix(rows, columns, dtype_);
  }
  device::Matrix take_matrix(int64_t rows, int64_t columns, DType dtype) {
    return model::take_matrix(memory_, dtype, rows, columns);
  }
  float* take_floats(int64_t count) { return model::take_floats(memory_, count); }

  /// Calls post(kernels, stream), unless planning.
  template <class Post>
  void post(const Post& post) {
    if (stream_ != nullptr) {
      post(kernels_, *stream_);
    }
  }
  /// The same with scratch of the given size for the call.
  template <class Post>
  void post_with_scratch(Bytes size, const Post& post) {
    const WorkspaceStack::Scope scope(memory_);
    const device::Workspace scratch{static_cast<std::byte*>(memory_.take(size)), size};
    if (stream_ != nullptr) {
      post(kernels_, *stream_, scratch);
    }
  }

  /// c = op_a(a) op_b(b) (+ c)
  void matmul(const device::Matrix& a, bool transpose_a, const device::Matrix& b, bool transpose_b,
              const device::Matrix& c, bool accumulate);

  /// For several layers that read x: it is rounded once. Takes memory of the caller's scope.
  LinearInput linear_input(const device::Matrix& x);
  /// out = x weight^T + bias
  void linear(const LinearInput& x, const PackedVector& weights, const LinearLayout& layer,
              const device::Matrix& out);
  /// Of the only layer that reads x.
  void linear(const device::Matrix& x, const PackedVector& weights, const LinearLayout& layer,
              const device::Matrix& out);
  /// sum (+)= x weight^T in fp32, for a layer whose inputs come in parts.
  void linear_part(const device::Matrix& x, const PackedVector& weights, const LinearLayout& layer,
                   const device::Matrix& sum, bool accumulate);
  /// dx (+)= dout weight
  void linear_input_gradient(const device::Matrix& dout, const PackedVector& weights,
                             const LinearLayout& layer, const device::Matrix& dx, bool accumulate);
  /// dweight = dout^T x and dbias, overwritten.
  void linear_weight_gradient(const device::Matrix& dout, const device::Matrix& x,
                              const LinearLayout& layer, const PackedVector& dweights);
  void rms_norm(const device::Matrix& x, const void* weight, double epsilon,
                const device::Matrix& y, float* inv_rms);
  /// Overwrites dweight; adds to dx where asked.
  void rms_norm_backward(const device::Matrix& dy, const device::Matrix& x, const void* weight,
                         const float* inv_rms, const device::Matrix& dx, bool accumulate_dx,
                         void* dweight);
  void zero_gaps(const std::vector<Gap>& gaps, const PackedVector& vector);

  Bytes attention_scratch(const device::AttentionShape& shape) const {
    return kernels_.attention_scratch(shape, dtype_);
  }

 private:
  /// In e4m3, in memory of the caller's scope.
  device::ScaledMatrix round(const device::Matrix& matrix);
  void multiply(const LinearInput& x, const device::Matrix& weight, const void* bias,
                const device::Matrix& out, bool accumulate);

  device::Kernels& kernels_;
  DType dtype_;
  bool fp8_forward_;
  device::Stream* stream_;
  WorkspaceStack& memory_;
};

/// A dense activation matrix given from outside, for reading unless the caller owns it.
inline device::Matrix dense_matrix(const void* data, DType dtype, int64_t rows, int64_t columns) {
  return {const_cast<void*>(data), dtype, rows, columns, columns};
}

}  // namespace headrace::model
