#pragma once

#include <cstdint>

#include "device/cuda/kernels/elementwise_grid.inl.h"

namespace headrace::device::cuda {

extern __shared__ __align__(16) unsigned char shared_memory[];

/// The block context of the GPU: a thread block in one dimension, in a grid of one dimension whose
/// blocks are numbered row by row. Thread t takes the elements t,
/// t + threads, ... of every loop. Reductions add per thread in order, then across each warp by
/// halves, then the warps in order: the same order for the same number of threads.
class CudaBlock {
 public:
  /// Of a grid with rows of `width` blocks.
  __device__ __forceinline__ explicit CudaBlock(uint32_t width)
      : x_(blockIdx.x % width), y_(blockIdx.x / width) {}

  template <class F>
  __device__ __forceinline__ void for_each(int64_t n, const F& f) const {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      f(i);
    }
  }

  template <class F>
  __device__ __forceinline__ void for_each_2d(int64_t rows, int64_t columns, const F& f) const {
    // A row's elements fit into 32 bits, where a division costs a fraction.
    const auto width = static_cast<uint32_t>(columns);
    const auto count = static_cast<uint32_t>(rows * columns);
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
      f(static_cast<int64_t>(i / width), static_cast<int64_t>(i % width));
    }
  }

  template <class F>
  __device__ __forceinline__ float reduce_sum(int64_t n, const F& f) const {
    return reduce<float>(n, 0.0F, f, [](float a, float b) { return a + b; });
  }
  template <class F>
  __device__ __forceinline__ double reduce_sum_f64(int64_t n, const F& f) const {
    return reduce<double>(n, 0.0, f, [](double a, double b) { return a + b; });
  }
  template <class F>
  __device__ __forceinline__ float reduce_max(int64_t n, const F& f) const {
    return reduce<float>(n, -__builtin_huge_valf(), f,
                         [](float a, float b) { return a > b ? a : b; });
  }

  __device__ __forceinline__ int64_t index_x() const { return x_; }
  __device__ __forceinline__ int64_t index_y() const { return y_; }
  template <class V>
  __device__ __forceinline__ V* shared() const {
    return reinterpret_cast<V*>(shared_memory);
  }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ bool is_first_thread() const { return threadIdx.x == 0; }

  __device__ __forceinline__ Words load(const void* source) const {
    const uint4 words = *static_cast<const uint4*>(source);
    return {words.x, words.y, words.z, words.w};
  }
  __device__ __forceinline__ void store(const Words& words, void* target) const {
    // The compiler takes an assignment apart again.
    __stwb(static_cast<uint4*>(target), make_uint4(words.x, words.y, words.z, words.w));
  }

  /// Looks at as many indices at a time as there are threads.
  template <class F>
  __device__ __forceinline__ int64_t first_index(int64_t begin, int64_t end, const F& f) const {
    __shared__ unsigned int first;
    for (int64_t base = begin; base < end; base += blockDim.x) {
      if (threadIdx.x == 0) {
        first = blockDim.x;
      }
      __syncthreads();
      const int64_t i = base + threadIdx.x;
      if (i < end && f(i)) {
        atomicMin(&first, threadIdx.x);  // of integers: any order gives the same
      }
      __syncthreads();
      const unsigned int found = first;
      __syncthreads();
      if (found < blockDim.x) {
        return base + found;
      }
    }
    return end;
  }

 private:
  template <class V, class F, class Combine>
  __device__ __forceinline__ V reduce(int64_t n, V identity, const F& f,
                                      const Combine& combine) const {
    __shared__ V of_warps[kMostThreads / 32];
    V value = identity;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      value = combine(value, f(i));
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      value = combine(value, __shfl_down_sync(0xffffffffU, value, offset));
    }
    if (threadIdx.x % 32 == 0) {
      of_warps[threadIdx.x / 32] = value;
    }
    __syncthreads();
    V total = of_warps[0];
    for (unsigned int warp = 1; warp < blockDim.x / 32; ++warp) {
      total = combine(total, of_warps[warp]);
    }
    __syncthreads();  // the next reduction writes there again
    return total;
  }

  uint32_t x_;
  uint32_t y_;
};

/// One thread block of Kernel.
template <class Kernel, uint32_t kThreads>
__global__ void __launch_bounds__(kThreads)
    kernel_entry(const __grid_constant__ typename Kernel::Arguments arguments, uint32_t width) {
  Kernel::run(CudaBlock(width), arguments);
}

}  // namespace headrace::device::cuda
