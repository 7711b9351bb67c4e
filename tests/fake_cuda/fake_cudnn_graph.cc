#include "tests/fake_cuda/fake_cudnn_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace headrace::device::testing {

using cuda::CudnnData;
using cuda::CudnnKind;
using cuda::CudnnPointwise;
using cuda::CudnnReduction;

namespace {

using Dimensions = std::array<int64_t, 4>;

int64_t size_of_type(CudnnData type) {
  return type == CudnnData::f32 || type == CudnnData::i32 ? 4 : type == CudnnData::boolean ? 1 : 2;
}

/// Of numbers in memory.
DType dtype_of(CudnnData type) {
  return type == CudnnData::bf16 ? DType::bf16 : type == CudnnData::f16 ? DType::f16 : DType::f32;
}

double rounded(CudnnData type, double value) {
  if (type == CudnnData::i32 || type == CudnnData::boolean) {
    return value;
  }
  std::array<std::byte, sizeof(float)> stored{};
  store_float(static_cast<float>(value), stored.data(), dtype_of(type));
  return load_float(stored.data(), dtype_of(type));
}

/// Calls visit(index, number) for each element in order.
template <class Visit>
void for_each(const Dimensions& d, const Visit& visit) {
  size_t number = 0;
  Dimensions i{};
  for (i[0] = 0; i[0] < d[0]; ++i[0]) {
    for (i[1] = 0; i[1] < d[1]; ++i[1]) {
      for (i[2] = 0; i[2] < d[2]; ++i[2]) {
        for (i[3] = 0; i[3] < d[3]; ++i[3]) {
          visit(i, number++);
        }
      }
    }
  }
}

int64_t offset(const Dimensions& index, const Dimensions& strides) {
  return index[0] * strides[0] + index[1] * strides[1] + index[2] * strides[2] +
         index[3] * strides[3];
}

/// Of the element of `to` that an element of `from` belongs to, in dense order: where a dimension
/// of `to` is shorter, several of `from` share one.
size_t shared(const Dimensions& index, const Dimensions& from, const Dimensions& to) {
  int64_t at = 0;
  for (size_t d = 0; d < 4; ++d) {
    at = at * to[d] + index[d] / (from[d] / to[d]);
  }
  return static_cast<size_t>(at);
}

bool divides(const Dimensions& part, const Dimensions& whole) {
  for (size_t d = 0; d < 4; ++d) {
    if (part[d] <= 0 || whole[d] % part[d] != 0) {
      return false;
    }
  }
  return true;
}

double apply(CudnnPointwise mode, double x, double b, double t) {
  switch (mode) {
    case CudnnPointwise::add:
      return x + b;
    case CudnnPointwise::multiply:
      return x * b;
    case CudnnPointwise::divide:
      return x / b;
    case CudnnPointwise::subtract:
      return x - b;
    case CudnnPointwise::exponential:
      return std::exp(x);
    case CudnnPointwise::logarithm:
      return std::log(x);
    case CudnnPointwise::greater_or_equal:
      return x >= b ? 1 : 0;
    case CudnnPointwise::select:
      return t != 0 ? x : b;
    default:
      return x;
  }
}

/// Operands of a mode.
size_t operands_of(CudnnPointwise mode) {
  const bool has_one = mode == CudnnPointwise::exponential || mode == CudnnPointwise::logarithm ||
                       mode == CudnnPointwise::index;
  return has_one ? 1 : mode == CudnnPointwise::select ? 3 : 2;
}

}  // namespace

size_t FakeTensor::elements() const {
  int64_t last = 0;
  for (size_t d = 0; d < 4; ++d) {
    last += (dimensions[d] - 1) * strides[d];
  }
  return static_cast<size_t>(last + 1);
}

size_t FakeTensor::bytes() const {
  return elements() * static_cast<size_t>(size_of_type(type));
}

bool FakeOperation::is_sound() const {
  const Dimensions& y = output.dimensions;
  if (kind == CudnnKind::operation_matmul) {
    const Dimensions& a = inputs.at(0).dimensions;
    const Dimensions& b = inputs.at(1).dimensions;
    return a[0] == b[0] && a[1] % b[1] == 0 && a[3] == b[2] &&
           y == Dimensions{a[0], a[1], a[2], b[3]};
  }
  if (kind == CudnnKind::operation_reduction) {
    return divides(y, inputs.at(0).dimensions);
  }
  if (kind == CudnnKind::operation_reshape) {
    return inputs.at(0).count() == output.count();
  }
  const bool has_axis = mode == CudnnPointwise::index;
  return inputs.size() == operands_of(mode) && (has_axis ? axis >= 0 && axis < 4 : axis < 0) &&
         std::all_of(inputs.begin(), inputs.end(),
                     [&](const FakeTensor& each) { return divides(each.dimensions, y); });
}

void FakeGraphRun::run(const FakeOperation& operation) {
  switch (operation.kind) {
    case CudnnKind::operation_matmul:
      return write(operation.output, multiply(operation));
    case CudnnKind::operation_reduction:
      return write(operation.output, reduce(operation));
    case CudnnKind::operation_reshape:
      return write(operation.output, reshape(operation));
    default:
      return write(operation.output, pointwise(operation));
  }
}

const FakeGraphRun::Values& FakeGraphRun::read(const FakeTensor& tensor) {
  const auto known = values_.find(tensor.id);
  if (known != values_.end()) {
    return known->second;
  }
  Values values(static_cast<size_t>(tensor.count()));
  const auto* const memory = static_cast<const std::byte*>(memory_.at(tensor.id));
  for_each(tensor.dimensions, [&](const Dimensions& index, size_t number) {
    values[number] = load_float(memory + offset(index, tensor.strides) * size_of_type(tensor.type),
                                dtype_of(tensor.type));
  });
  return values_[tensor.id] = std::move(values);
}

void FakeGraphRun::write(const FakeTensor& tensor, Values values) {
  for (double& value : values) {
    value = rounded(tensor.type, value);
  }
  if (!tensor.is_virtual) {
    auto* const memory = static_cast<std::byte*>(memory_.at(tensor.id));
    for_each(tensor.dimensions, [&](const Dimensions& index, size_t number) {
      store_float(static_cast<float>(values[number]),
                  memory + offset(index, tensor.strides) * size_of_type(tensor.type),
                  dtype_of(tensor.type));
    });
  }
  values_[tensor.id] = std::move(values);
}

FakeGraphRun::Values FakeGraphRun::pointwise(const FakeOperation& operation) {
  const Dimensions& y = operation.output.dimensions;
  Values result(static_cast<size_t>(operation.output.count()));
  if (operation.mode == CudnnPointwise::index) {
    for_each(y, [&](const Dimensions& index, size_t number) {
      result[number] = static_cast<double>(index[static_cast<size_t>(operation.axis)]);
    });
    return result;
  }
  std::array<const Values*, 3> operands{};
  for (size_t i = 0; i < operation.inputs.size(); ++i) {
    operands[i] = &read(operation.inputs[i]);
  }
  for_each(y, [&](const Dimensions& index, size_t number) {
    std::array<double, 3> values{};
    for (size_t i = 0; i < operation.inputs.size(); ++i) {
      const Dimensions& own = operation.inputs[i].dimensions;
      values[i] = (*operands[i])[own == y ? number : shared(index, y, own)];
    }
    result[number] = apply(operation.mode, values[0], values[1], values[2]);
  });
  return result;
}

FakeGraphRun::Values FakeGraphRun::multiply(const FakeOperation& operation) {
  const FakeTensor& left = operation.inputs[0];
  const FakeTensor& right = operation.inputs[1];
  const Values& a = read(left);
  const Values& b = read(right);
  const auto [batch, heads, rows, depth] = left.dimensions;
  const int64_t columns = right.dimensions[3];
  const int64_t group = heads / right.dimensions[1];
  Values c(static_cast<size_t>(operation.output.count()));
  for (int64_t matrix = 0; matrix < batch * heads; ++matrix) {
    for (int64_t row = 0; row < rows; ++row) {
      double* const sums = c.data() + (matrix * rows + row) * columns;
      for (int64_t x = 0; x < depth; ++x) {
        const double factor = a[static_cast<size_t>((matrix * rows + row) * depth + x)];
        const double* const other = b.data() + (matrix / group * depth + x) * columns;
        for (int64_t column = 0; column < columns && factor != 0; ++column) {
          sums[column] += factor * other[column];
        }
      }
    }
  }
  return c;
}

FakeGraphRun::Values FakeGraphRun::reduce(const FakeOperation& operation) {
  const FakeTensor& x = operation.inputs[0];
  const bool is_max = operation.reduction == CudnnReduction::max;
  const Values& values = read(x);
  Values result(static_cast<size_t>(operation.output.count()),
                is_max ? -std::numeric_limits<double>::infinity() : 0);
  for_each(x.dimensions, [&](const Dimensions& index, size_t number) {
    double& into = result[shared(index, x.dimensions, operation.output.dimensions)];
    into = is_max ? std::fmax(into, values[number]) : into + values[number];
  });
  return result;
}

/// The same memory in another order.
FakeGraphRun::Values FakeGraphRun::reshape(const FakeOperation& operation) {
  const FakeTensor& x = operation.inputs[0];
  const FakeTensor& y = operation.output;
  const Values& values = read(x);
  Values memory(x.elements(), std::numeric_limits<double>::quiet_NaN());
  for_each(x.dimensions, [&](const Dimensions& index, size_t number) {
    memory[static_cast<size_t>(offset(index, x.strides))] = values[number];
  });
  Values result(values.size());
  for_each(y.dimensions, [&](const Dimensions& index, size_t number) {
    result[number] = memory.at(static_cast<size_t>(offset(index, y.strides)));
  });
  return result;
}

}  // namespace headrace::device::testing
