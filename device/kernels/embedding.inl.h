#pragma once

#include <cstdint>

#include "device/kernels/convert.inl.h"

namespace headrace::device::kernels {

/// target[i] = source[i].
template <class Block, class T>
HR_KERNEL void copy_row(const Block& block, const T* source, T* target, int64_t count) {
  block.for_each(count, [=](int64_t i) HR_KERNEL_LAMBDA { target[i] = source[i]; });
}

/// target[i] = 0.
template <class Block, class T>
HR_KERNEL void zero_row(const Block& block, T* target, int64_t count) {
  block.for_each(count, [=](int64_t i) HR_KERNEL_LAMBDA { target[i] = T{}; });
}

}  // namespace headrace::device::kernels
