#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/cpu/row_kernels_block.h"
#include "device/cuda/kernels/elementwise_grid.inl.h"

namespace headrace::device::testing {

struct FakeTarget;

/// A block of the CUDA device's kernels on the CPU: one thread runs the whole block, loop by loop,
/// in the same order of operations as the CPU device's row kernels.
class FakeBlock : public cpu::SerialBlock<FakeTarget> {
 public:
  FakeBlock(int64_t x, int64_t y, std::byte* shared_memory)
      : x_(x), y_(y), shared_(shared_memory) {}

  int64_t index_x() const { return x_; }
  int64_t index_y() const { return y_; }
  template <class V>
  V* shared() const {
    return reinterpret_cast<V*>(shared_);
  }
  void sync() const {}
  bool is_first_thread() const { return true; }
  cuda::Words load(const void* source) const {
    cuda::Words words;
    std::memcpy(&words, source, sizeof(words));
    return words;
  }
  void store(const cuda::Words& words, void* target) const {
    std::memcpy(target, &words, sizeof(words));
  }
  template <class F>
  int64_t first_index(int64_t begin, int64_t end, const F& f) const {
    int64_t i = begin;
    while (i < end && !f(i)) {
      ++i;
    }
    return i < end ? i : end;
  }

 private:
  int64_t x_;
  int64_t y_;
  std::byte* shared_;
};

}  // namespace headrace::device::testing
