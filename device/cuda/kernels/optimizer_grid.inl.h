#pragma once

#include "device/cuda/kernels/elementwise_grid.inl.h"
#include "device/kernels/optimizer.inl.h"

namespace headrace::device::cuda {

/// What kernels::update_elements moves kPack elements with, 16 bytes at a time.
template <class Block>
struct PackAccess {
  const Block& block;
  template <class T>
  HR_KERNEL void load(const T* source, T (&values)[kPack]) const {
    load_pack(block, source, values);
  }
  template <class T>
  HR_KERNEL void store(const T (&values)[kPack], T* target) const {
    store_pack(block, values, target);
  }
};

struct OptimizerUpdate {
  using Arguments = OptimizerArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t first = block.index_x() * Arguments::kPiece;
    const int64_t count = lesser(Arguments::kPiece, arguments.arrays.count - first);
    const int64_t packs = arguments.vectorized ? count / kPack : 0;
    const auto note = [&](bool is_finite) HR_KERNEL_LAMBDA {
      if (!is_finite) {
        *arguments.not_finite = 1;  // whoever writes it writes the same
      }
    };
    block.for_each(packs, [&](int64_t pack) HR_KERNEL_LAMBDA {
      note(kernels::update_elements<kPack>(PackAccess<Block>{block}, arguments.step,
                                           arguments.arrays, first + pack * kPack));
    });
    const int64_t done = packs * kPack;
    block.for_each(count - done, [&](int64_t i) HR_KERNEL_LAMBDA {
      note(kernels::update_elements<1>(kernels::ElementAccess(), arguments.step, arguments.arrays,
                                       first + done + i));
    });
  }
};

/// One block of statistics each: lane l sums the elements l, l + kLanes, ..., then the upper half
/// of the lanes is added to the lower one until one is left. That is the order of the CPU's
/// reductions (SerialBlock).
template <class T>
struct GradientStatistics {
  using Arguments = StatisticsArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    constexpr int64_t kLanes = Arguments::kLanes;
    const int64_t first = block.index_x() * kStatisticsBlock.count();
    const int64_t count = lesser(kStatisticsBlock.count(), arguments.count - first);
    const T* const values = static_cast<const T*>(arguments.gradient) + first;
    double* const sums = block.template shared<double>();
    block.for_each(kLanes, [=](int64_t lane) HR_KERNEL_LAMBDA {
      double sum = 0;
#pragma unroll 16
      for (int64_t i = lane; i < count; i += kLanes) {
        sum += kernels::square_f64(values[i]);
      }
      sums[lane] = sum;
    });
    block.sync();
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      block.for_each(width,
                     [=](int64_t lane) HR_KERNEL_LAMBDA { sums[lane] += sums[lane + width]; });
      block.sync();
    }
    if (block.is_first_thread()) {
      arguments.sums[block.index_x()] = sums[0];
    }
  }
};

}  // namespace headrace::device::cuda
