#pragma once

#include <bit>
#include <cstdint>

#include "device/cuda/kernels/elementwise_grid.inl.h"
#include "device/kernels/e4m3.inl.h"

namespace headrace::device::cuda {

/// A thread's elements of a matrix that is to be rounded: units of 16 that lie side by side, taken
/// by lane after lane of block after block.
template <class T, class F>
HR_KERNEL void for_units_of_lane(int64_t block_index, int64_t lane,
                                 const QuantizeArguments& arguments, const F& f) {
  constexpr int64_t kUnit = QuantizeArguments::kUnit;
  constexpr int64_t kLanes = QuantizeArguments::kLanes;
  const int64_t per_row = arguments.columns / kUnit;
  const int64_t step = arguments.blocks * kLanes;
  for (int64_t unit = block_index * kLanes + lane; unit < arguments.rows * per_row; unit += step) {
    // Dense rows are one long row: there is nothing to divide.
    const int64_t row = arguments.rows == 1 ? 0 : unit / per_row;
    const T* const source = static_cast<const T*>(arguments.source) + row * arguments.stride;
    f(unit, source + (unit - row * per_row) * kUnit);
  }
}

/// maxima[b] = largest magnitude of what block b looks at.
template <class T>
struct LargestMagnitude {
  using Arguments = QuantizeArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    constexpr int64_t kLanes = Arguments::kLanes;
    float* const lanes = block.template shared<float>();
    block.for_each(kLanes, [=](int64_t lane) HR_KERNEL_LAMBDA {
      float largest = 0;
      const auto look = [&](int64_t /*unit*/, const T* source) HR_KERNEL_LAMBDA {
#pragma unroll
        for (int64_t first = 0; first < Arguments::kUnit; first += kPack) {
          T pack[kPack];
          load_pack(block, source + first, pack);
#pragma unroll
          for (int i = 0; i < kPack; ++i) {
            const float magnitude = kernels::magnitude_f32(kernels::to_f32(pack[i]));
            largest = magnitude > largest ? magnitude : largest;
          }
        }
      };
      for_units_of_lane<T>(block.index_x(), lane, arguments, look);
      lanes[lane] = largest;
    });
    block.sync();
    const float largest =
        block.reduce_max(kLanes, [=](int64_t lane) HR_KERNEL_LAMBDA { return lanes[lane]; });
    if (block.is_first_thread()) {
      arguments.maxima[block.index_x()] = largest;
    }
  }
};

/// Every block finds the scale from all maxima; the first one stores it.
template <class T>
struct Quantize {
  using Arguments = QuantizeArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const float* const maxima = arguments.maxima;
    const float largest =
        block.reduce_max(arguments.blocks, [=](int64_t i) HR_KERNEL_LAMBDA { return maxima[i]; });
    const kernels::E4m3Scale scale = kernels::e4m3_scale(largest);
    if (block.index_x() == 0 && block.is_first_thread()) {
      *arguments.scale = scale.from_codes;
    }
    auto* const codes = static_cast<kernels::E4m3*>(arguments.codes);
    block.for_each(Arguments::kLanes, [=](int64_t lane) HR_KERNEL_LAMBDA {
      const auto round = [&](int64_t unit, const T* source) HR_KERNEL_LAMBDA {
        Unit<kernels::E4m3> rounded;
#pragma unroll
        for (int64_t first = 0; first < Arguments::kUnit; first += kPack) {
          T pack[kPack];
          load_pack(block, source + first, pack);
          kernels::quantize_row(PackBlock<kPack>(), static_cast<const T*>(pack), scale.to_codes,
                                rounded.values + first, kPack);
        }
        block.store(std::bit_cast<Words>(rounded), codes + unit * Arguments::kUnit);
      };
      for_units_of_lane<T>(block.index_x(), lane, arguments, round);
    });
  }
};

}  // namespace headrace::device::cuda
