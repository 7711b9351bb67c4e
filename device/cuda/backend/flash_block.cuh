#pragma once

#include <cstdint>

#include "device/cuda/backend/launch_kernel.cuh"
#include "device/cuda/kernels/flash_dispatch.inl.h"

namespace headrace::device::cuda {

/// Of a multiple of the swizzle's period, so that offsets can be permuted before it is added.
extern __shared__ __align__(1024) unsigned char flash_memory[];

/// The block context of tensor-core attention on the GPU: one thread of it. What each operation
/// means is said by the PTX ISA under the name of its instruction.
class FlashBlock {
 public:
  using F32 = float;
  using I32 = int32_t;
  using U32 = uint32_t;
  using Mask = bool;

  // Volatile, so that what follows from them is computed again where it is used, rather than kept
  // in registers that the accumulators need.
  __device__ __forceinline__ int index() const {
    int result;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(result));
    return result;
  }
  __device__ __forceinline__ I32 thread() const {
    I32 result;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(result));
    return result;
  }
  __device__ __forceinline__ void sync() const { __syncthreads(); }

  template <class V>
  __device__ __forceinline__ V select(bool condition, V a, V b) const {
    return condition ? a : b;
  }
  /// Of one NaN and a number the number.
  __device__ __forceinline__ float max(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ float fma(float a, float b, float c) const {
    return __fmaf_rn(a, b, c);
  }
  __device__ __forceinline__ float log(float x) const { return kernels::log_f32(x); }
  /// Within 2 units in the last place; subnormal results are 0.
  __device__ __forceinline__ float exp2(float x) const {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
  template <class V>
  __device__ __forceinline__ V shuffle_xor(V value, int lanes) const {
    return __shfl_xor_sync(0xffffffffU, value, lanes);
  }

  /// Two numbers rounded to T, `low` in the lower half.
  template <class T>
  __device__ __forceinline__ U32 pack(float low, float high) const {
    U32 result;
    if constexpr (std::is_same_v<T, Bf16>) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    }
    return result;
  }

  /// sum += a b, a of 16 x 16 and b of 16 x 8 elements T.
  template <class T>
  __device__ __forceinline__ void multiply(float (&sum)[4], const U32 (&a)[4], U32 b0,
                                           U32 b1) const {
    if constexpr (std::is_same_v<T, Bf16>) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }

  /// Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8.
  __device__ __forceinline__ void load_matrices(I32 at, U32 (&result)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address(at))
                 : "memory");
  }
  __device__ __forceinline__ void load_matrices_transposed(I32 at, U32 (&result)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address(at))
                 : "memory");
  }

  /// 16 bytes from base[offset] to shared memory; zeros where there is nothing.
  template <class V>
  __device__ __forceinline__ void copy_async_16(I32 at, const V* base, I32 offset,
                                                bool is_there) const {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address(at)),
                 "l"(__cvta_generic_to_global(base + offset)), "r"(is_there ? 16 : 0)
                 : "memory");
  }
  /// 4 bytes, by the threads that are active.
  __device__ __forceinline__ void copy_async_4(I32 at, const float* base, I32 offset,
                                               bool is_active, bool is_there) const {
    if (is_active) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address(at)),
                   "l"(__cvta_generic_to_global(base + offset)), "r"(is_there ? 4 : 0)
                   : "memory");
    }
  }
  __device__ __forceinline__ void commit() const {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  /// Until no more than kLeft groups of the thread are under way.
  template <int kLeft>
  __device__ __forceinline__ void wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
  }

  __device__ __forceinline__ void load_shared_2(I32 at, float (&result)[2]) const {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(result[0]), "=f"(result[1])
                 : "r"(address(at))
                 : "memory");
  }
  __device__ __forceinline__ void store_shared_4(I32 at, U32 word) const {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address(at)), "r"(word) : "memory");
  }

  /// 0 where there is nothing.
  __device__ __forceinline__ float load_f32(const float* base, I32 offset, bool is_there) const {
    return is_there ? base[offset] : 0.0F;
  }
  __device__ __forceinline__ void store_f32(float* base, I32 offset, float value,
                                            bool is_there) const {
    if (is_there) {
      base[offset] = value;
    }
  }
  /// The same for all threads.
  __device__ __forceinline__ int read_i32(const int32_t* address) const { return *address; }
  __device__ __forceinline__ I32 load_i32(const int32_t* base, I32 offset, bool is_there) const {
    return is_there ? base[offset] : 0;
  }
  /// One element of 2 bytes.
  template <class T>
  __device__ __forceinline__ U32 load_half(const T* base, I32 offset, bool is_there) const {
    return is_there ? base[offset].bits : 0U;
  }
  template <class T>
  __device__ __forceinline__ float widen(U32 bits) const {
    return kernels::to_f32(T{static_cast<uint16_t>(bits)});
  }
  template <class T>
  __device__ __forceinline__ void store_half(T* base, I32 offset, U32 value, bool is_there) const {
    if (is_there) {
      base[offset].bits = static_cast<uint16_t>(value);
    }
  }
  /// 16 bytes; zeros where there is nothing.
  template <class T>
  __device__ __forceinline__ void load_16(const T* base, I32 offset, bool is_there,
                                          U32 (&words)[4]) const {
    const uint4 loaded =
        is_there ? *reinterpret_cast<const uint4*>(base + offset) : make_uint4(0, 0, 0, 0);
    words[0] = loaded.x;
    words[1] = loaded.y;
    words[2] = loaded.z;
    words[3] = loaded.w;
  }
  template <class T>
  __device__ __forceinline__ void store_16(T* base, I32 offset, const U32 (&words)[4],
                                           bool is_there) const {
    if (is_there) {
      *reinterpret_cast<uint4*>(base + offset) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

 private:
  __device__ __forceinline__ static U32 address(I32 at) {
    return static_cast<U32>(__cvta_generic_to_shared(flash_memory)) + static_cast<U32>(at);
  }
};

/// One thread block of Kernel.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocksPerSm)
    flash_entry(const __grid_constant__ typename Kernel::Arguments arguments) {
  Kernel::run(FlashBlock(), arguments);
}

/// Launches the kernel that a dispatch function finds.
struct LaunchFlash {
  const Launch& launch;
  const void* arguments;
  cudaStream_t stream;
  cudaError_t& result;

  template <class Kernel>
  bool operator()() const {
    void* parameters[] = {const_cast<void*>(arguments)};
    result = launch_entry(reinterpret_cast<const void*>(&flash_entry<Kernel>), Kernel::kThreads,
                          launch, dim3(launch.grid_x, launch.grid_y), parameters, stream);
    return true;
  }
};

}  // namespace headrace::device::cuda
