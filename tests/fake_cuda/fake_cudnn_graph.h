#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "device/cuda/cudnn_api.h"

namespace headrace::device::testing {

/// A tensor as its descriptor says; strides count elements.
struct FakeTensor {
  int64_t id = 0;
  cuda::CudnnData type = cuda::CudnnData::f32;
  std::array<int64_t, 4> dimensions{};
  std::array<int64_t, 4> strides{};
  int64_t alignment = 0;
  bool is_virtual = false;
  bool is_by_value = false;

  int64_t count() const { return dimensions[0] * dimensions[1] * dimensions[2] * dimensions[3]; }
  /// From the first one to behind the last one, in memory.
  size_t elements() const;
  size_t bytes() const;
};

/// One operation of a graph; operands that it has not are missing.
struct FakeOperation {
  cuda::CudnnKind kind = cuda::CudnnKind::operation_pointwise;
  cuda::CudnnPointwise mode = cuda::CudnnPointwise::add;
  cuda::CudnnReduction reduction = cuda::CudnnReduction::add;
  int64_t axis = -1;
  std::vector<FakeTensor> inputs;  ///< x, b, t; a, b of products
  FakeTensor output;

  /// Whether the shapes go together.
  bool is_sound() const;
};

/// Computes the operations in their order, in double, every tensor rounded to its type: what the
/// graph means, whatever it is meant to be. Memory is read and written by the tensors' strides.
class FakeGraphRun {
 public:
  explicit FakeGraphRun(std::map<int64_t, void*> memory) : memory_(std::move(memory)) {}
  void run(const FakeOperation& operation);

 private:
  using Values = std::vector<double>;

  const Values& read(const FakeTensor& tensor);
  void write(const FakeTensor& tensor, Values values);
  Values pointwise(const FakeOperation& operation);
  Values multiply(const FakeOperation& operation);
  Values reduce(const FakeOperation& operation);
  Values reshape(const FakeOperation& operation);

  std::map<int64_t, void*> memory_;   ///< by id
  std::map<int64_t, Values> values_;  ///< dense, by id
};

}  // namespace headrace::device::testing
