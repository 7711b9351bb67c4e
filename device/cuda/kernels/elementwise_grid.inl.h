#pragma once

#include <bit>
#include <cstdint>

#include "device/cuda/launch.h"
#include "device/kernels/elementwise.inl.h"
#include "device/kernels/embedding.inl.h"

/// The row kernels of device/kernels laid out over a grid of blocks: one struct per kernel with its
/// Arguments and run(block, arguments), for a block context as of SerialBlock that also knows
///   index_x(), index_y()  which block this is,
///   shared<V>()           the block's shared memory,
///   sync()                what any thread of the block wrote before is seen by all after it,
///   is_first_thread()     true for one thread of the block,
///   first_index(begin, end, f)  the smallest i in [begin, end) with f(i), else end,
///   load(p), store(words, p)    16 bytes at a multiple of 16, in one instruction.
/// for_each gives the same thread the same index in every loop of a kernel. nvcc compiles them for
/// the GPU, g++ for the fake of the tests.
namespace headrace::device::cuda {

HR_KERNEL int64_t lesser(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// The block context of one thread with kCount elements in registers.
template <int kCount>
struct PackBlock {
  template <class F>
  HR_KERNEL void for_each(int64_t /*count*/, const F& f) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      f(i);
    }
  }
};

inline constexpr int kPack = 8;  ///< elements that a thread moves at once, in units of 16 bytes

template <class T>
struct alignas(16) Unit {
  T values[16 / sizeof(T)];
};
/// A unit as it is moved.
struct alignas(16) Words {
  uint32_t x, y, z, w;
};

template <class Block, class T>
HR_KERNEL void load_pack(const Block& block, const T* source, T (&pack)[kPack]) {
  constexpr int kPerUnit = 16 / sizeof(T);
#pragma unroll
  for (int u = 0; u < kPack / kPerUnit; ++u) {
    const auto unit = std::bit_cast<Unit<T>>(block.load(source + u * kPerUnit));
#pragma unroll
    for (int i = 0; i < kPerUnit; ++i) {
      pack[u * kPerUnit + i] = unit.values[i];
    }
  }
}

template <class Block, class T>
HR_KERNEL void store_pack(const Block& block, const T (&pack)[kPack], T* target) {
  constexpr int kPerUnit = 16 / sizeof(T);
#pragma unroll
  for (int u = 0; u < kPack / kPerUnit; ++u) {
    Unit<T> unit;
#pragma unroll
    for (int i = 0; i < kPerUnit; ++i) {
      unit.values[i] = pack[u * kPerUnit + i];
    }
    block.store(std::bit_cast<Words>(unit), target + u * kPerUnit);
  }
}

/// Runs Op over the block's piece of one row: Op::apply(block, in, out, count) works on
/// Op::kInputs rows of Op::In and Op::kOutputs rows of Op::Out.
template <class Op, class Block>
HR_KERNEL void run_elementwise(const Block& block, const ElementwiseArguments& arguments) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  constexpr int64_t kPiece = ElementwiseArguments::kPieceColumns;
  const int64_t pieces = ceil_div(arguments.columns, kPiece);
  const int64_t row = block.index_x() / pieces;
  const int64_t column = block.index_x() % pieces * kPiece;
  const int64_t count = lesser(kPiece, arguments.columns - column);
  const In* in[3] = {
      static_cast<const In*>(arguments.a) + row * arguments.a_stride + column,
      static_cast<const In*>(arguments.b) + row * arguments.b_stride + column,
      static_cast<const In*>(arguments.c) + row * arguments.c_stride + column,
  };
  Out* out[2] = {static_cast<Out*>(arguments.out) + row * arguments.out_stride + column,
                 static_cast<Out*>(arguments.out2) + row * arguments.out2_stride + column};
  int64_t done = 0;
  if (arguments.vectorized) {
    block.for_each(count / kPack, [=](int64_t index) HR_KERNEL_LAMBDA {
      In in_packs[3][kPack];
      Out out_packs[2][kPack];
      const In* in_registers[3] = {in_packs[0], in_packs[1], in_packs[2]};
      Out* out_registers[2] = {out_packs[0], out_packs[1]};
      for (int i = 0; i < Op::kInputs; ++i) {
        load_pack(block, in[i] + index * kPack, in_packs[i]);
      }
      for (int i = 0; i < (Op::kReadsOut ? Op::kOutputs : 0); ++i) {
        load_pack(block, static_cast<const Out*>(out[i]) + index * kPack, out_packs[i]);
      }
      Op::apply(PackBlock<kPack>(), in_registers, out_registers, kPack);
      for (int i = 0; i < Op::kOutputs; ++i) {
        store_pack(block, out_packs[i], out[i] + index * kPack);
      }
    });
    done = count / kPack * kPack;
  }
  for (int i = 0; i < Op::kInputs; ++i) {
    in[i] += done;
  }
  for (int i = 0; i < Op::kOutputs; ++i) {
    out[i] += done;
  }
  Op::apply(block, in, out, count - done);
}

/// What the elementwise kernels share. kReadsOut: outputs are also inputs.
template <class Op, class InType, class OutType, int kInputCount, int kOutputCount,
          bool kOutIsRead = false>
struct Elementwise {
  using Arguments = ElementwiseArguments;
  using In = InType;
  using Out = OutType;
  static constexpr int kInputs = kInputCount;
  static constexpr int kOutputs = kOutputCount;
  static constexpr bool kReadsOut = kOutIsRead;

  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    run_elementwise<Op>(block, arguments);
  }
};

template <class T>
struct ZeroRows : Elementwise<ZeroRows<T>, T, T, 0, 1> {
  template <class Block>
  static HR_KERNEL void apply(const Block& block, const T* const*, T* const* out, int64_t count) {
    kernels::zero_row(block, out[0], count);
  }
};

/// Also adds a bias: b with stride 0.
template <class T>
struct AddRows : Elementwise<AddRows<T>, T, T, 2, 1> {
  template <class Block>
  static HR_KERNEL void apply(const Block& block, const T* const* in, T* const* out,
                              int64_t count) {
    kernels::add_row(block, in[0], in[1], out[0], count);
  }
};

template <class T, class Target>
struct Cast : Elementwise<Cast<T, Target>, T, Target, 1, 1> {
  template <class Block>
  static HR_KERNEL void apply(const Block& block, const T* const* in, Target* const* out,
                              int64_t count) {
    kernels::cast_row(block, in[0], out[0], count);
  }
};

template <class T>
struct Accumulate : Elementwise<Accumulate<T>, T, float, 1, 1, true> {
  template <class Block>
  static HR_KERNEL void apply(const Block& block, const T* const* in, float* const* out,
                              int64_t count) {
    kernels::accumulate_row(block, in[0], out[0], count);
  }
};

/// gate, up -> out.
template <class T>
struct SwigluForward : Elementwise<SwigluForward<T>, T, T, 2, 1> {
  template <class Block>
  static HR_KERNEL void apply(const Block& block, const T* const* in, T* const* out,
                              int64_t count) {
    kernels::swiglu_forward_row(block, in[0], in[1], out[0], count);
  }
};

/// dout, gate, up -> dgate, dup.
template <class T>
struct SwigluBackward : Elementwise<SwigluBackward<T>, T, T, 3, 2> {
  template <class Block>
  static HR_KERNEL void apply(const Block& block, const T* const* in, T* const* out,
                              int64_t count) {
    kernels::swiglu_backward_row(block, in[0], in[1], in[2], out[0], out[1], count);
  }
};

}  // namespace headrace::device::cuda
