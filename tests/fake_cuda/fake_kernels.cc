#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "device/cuda/kernels/dispatch.inl.h"
#include "tests/fake_cuda/argument_bytes.h"
#include "tests/fake_cuda/fake_block.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_flash.h"
// Last: nothing is fused from here on, as nvcc is told too.
#include "base/exact_float.h"

namespace headrace::device::testing {

using cuda::Launch;

namespace {

/// Runs the kernel's blocks one after the other. Each finds NaN in its shared memory.
struct RunBlocks {
  const Launch& launch;
  const void* arguments;

  template <class Kernel>
  bool operator()() const {
    const auto& typed = *static_cast<const typename Kernel::Arguments*>(arguments);
    constexpr size_t kAlignment = 64;
    std::vector<std::byte> shared(launch.shared_bytes + kAlignment);
    const size_t past = reinterpret_cast<uintptr_t>(shared.data()) % kAlignment;
    std::byte* const base = shared.data() + (kAlignment - past) % kAlignment;
    for (uint32_t y = 0; y < launch.grid_y; ++y) {
      for (uint32_t x = 0; x < launch.grid_x; ++x) {
        std::fill(shared.begin(), shared.end(), std::byte{0xff});
        Kernel::run(FakeBlock(x, y, base), typed);
      }
    }
    return true;
  }
};

template <class Run>
bool dispatch(const Launch& launch, const Run& run) {
  return cuda::dispatch_elementwise(launch, run) || cuda::dispatch_rows(launch, run) ||
         cuda::dispatch_optimizer(launch, run) || cuda::dispatch_tiles(launch, run);
}

/// By the definition of the format, not by the arithmetic of the kernels.
float read_e4m3(uint8_t code) {
  const int exponent = (code >> 3U) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) {
    return NAN;
  }
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

float read(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[index];
    case DType::u8:
      return read_e4m3(static_cast<const uint8_t*>(data)[index]);
    case DType::bf16:
      return kernels::to_f32(static_cast<const Bf16*>(data)[index]);
    default:
      return kernels::to_f32(static_cast<const F16*>(data)[index]);
  }
}

void write(DType dtype, void* data, int64_t index, float value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::bf16:
      static_cast<Bf16*>(data)[index] = kernels::from_f32<Bf16>(value);
      return;
    default:
      static_cast<F16*>(data)[index] = kernels::from_f32<F16>(value);
  }
}

/// Rows of op(matrix), or its columns, one after the other as fp32: `outer` of `inner` elements.
std::vector<float> gather(DType dtype, const void* data, int64_t outer, int64_t outer_step,
                          int64_t inner, int64_t inner_step) {
  std::vector<float> values(static_cast<size_t>(outer * inner));
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t k = 0; k < inner; ++k) {
      values[static_cast<size_t>(i * inner + k)] =
          read(dtype, data, i * outer_step + k * inner_step);
    }
  }
  return values;
}

/// To the 10 bits of mantissa that tf32 has, ties to even.
void round_to_tf32(std::vector<float>& values) {
  for (float& value : values) {
    auto bits = std::bit_cast<uint32_t>(value);
    if (std::isfinite(value)) {
      bits += 0xfffU + ((bits >> 13U) & 1U);
    }
    value = std::bit_cast<float>(bits & ~uint32_t{0x1fff});
  }
}

float dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  float sum = 0;
  for (; i < count; ++i) {
    sum += a[i] * b[i];
  }
  for (const float lane : lanes) {
    sum += lane;
  }
  return sum;
}

}  // namespace

bool run_kernel(const Launch& launch, const void* arguments) {
  return run_flash_kernel(launch, arguments) || dispatch(launch, RunBlocks{launch, arguments});
}

size_t argument_bytes(const Launch& launch) {
  size_t size = flash_argument_bytes(launch);
  dispatch(launch, ArgumentBytes{size});
  return size;
}

void multiply(const cuda::LtProduct& p, float alpha, float beta, const cuda::LtOperands& operands) {
  // Element (r, c) of a column-major matrix is at c * ld + r.
  const int64_t inner = p.transpose_a ? p.a_rows : p.a_columns;
  std::vector<float> left = gather(p.ab_type, operands.a, p.c_rows, p.transpose_a ? p.lda : 1,
                                   inner, p.transpose_a ? 1 : p.lda);
  std::vector<float> right = gather(p.ab_type, operands.b, p.c_columns, p.transpose_b ? 1 : p.ldb,
                                    inner, p.transpose_b ? p.ldb : 1);
  if (p.allow_tf32) {
    round_to_tf32(left);
    round_to_tf32(right);
  }
  const float scale = operands.a_scale == nullptr ? 1.0F : *operands.a_scale * *operands.b_scale;
  void* const c = operands.c;
  for (int64_t column = 0; column < p.c_columns; ++column) {
    for (int64_t row = 0; row < p.c_rows; ++row) {
      const float sum = dot(left.data() + row * inner, right.data() + column * inner, inner);
      const int64_t at = column * p.ldc + row;
      // With beta 0 cuBLASLt does not read c.
      const float value = alpha * scale * sum + (beta == 0 ? 0.0F : beta * read(p.c_type, c, at));
      write(p.c_type, c, at, p.has_bias ? value + read(p.c_type, operands.bias, row) : value);
    }
  }
}

}  // namespace headrace::device::testing
