#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "device/kernels/math.inl.h"
#include "tests/fake_cuda/checked_memory.h"
#include "tests/fake_cuda/lanes.h"

namespace headrace::device::testing {

/// The block context of tensor-core attention on the CPU: all threads of a block in lockstep,
/// every value a register of all of them. Written from the PTX ISA (9.7.14 mma and ldmatrix, 9.7.9
/// cp.async), not from the kernels. Arithmetic of mma: exact products added in fp32, in the order
/// of the inner dimension; a GPU may add in another one.
template <int kThreads>
class LockstepBlock {
 public:
  using F32 = Lanes<float, kThreads>;
  using I32 = Lanes<int32_t, kThreads>;
  using U32 = Lanes<uint32_t, kThreads>;
  using Mask = Lanes<bool, kThreads>;

  /// What a block has done.
  struct Counts {
    int64_t products = 0;  ///< mma, per warp
    int64_t loads = 0;     ///< ldmatrix, per warp
  };

  /// Both memories must outlive the block.
  LockstepBlock(int index, SharedMemory& shared, const GlobalMemory& global)
      : index_(index), shared_(shared), global_(global) {}
  LockstepBlock(const LockstepBlock&) = delete;
  LockstepBlock& operator=(const LockstepBlock&) = delete;
  ~LockstepBlock() = default;

  const Counts& counts() const { return counts_; }
  /// After the kernel: nothing may be under way.
  void finish() const {
    const bool is_idle = std::all_of(groups_.begin(), groups_.end(),
                                     [](const auto& group) { return group.empty(); });
    HR_CHECK(copies_.empty() && is_idle, "the block ends before its asynchronous copies");
  }

  int index() const { return index_; }
  I32 thread() const {
    return I32::template map<int32_t>([](int i) { return i; });
  }
  void sync() const { shared_.barrier(); }

  template <class V>
  V select(const Mask& condition, const V& a, const V& b) const {
    V result;
    for (int i = 0; i < kThreads; ++i) {
      result.at[i] = condition.at[i] ? a.at[i] : b.at[i];
    }
    return result;
  }
  F32 max(const F32& a, const F32& b) const {
    return F32::template map<float>([&](int i) {
      const float other = std::isnan(b.at[i]) ? a.at[i] : b.at[i];
      return a.at[i] > b.at[i] ? a.at[i] : other;
    });
  }
  F32 fma(const F32& a, const F32& b, const F32& c) const {
    return F32::template map<float>([&](int i) { return std::fma(a.at[i], b.at[i], c.at[i]); });
  }
  F32 log(const F32& x) const {
    return F32::template map<float>([&](int i) { return kernels::log_f32(x.at[i]); });
  }
  F32 exp2(const F32& x) const {
    return F32::template map<float>([&](int i) {
      const float result = std::exp2(x.at[i]);
      return result < 0x1p-126F ? 0.0F : result;
    });
  }
  template <class V>
  V shuffle_xor(const V& value, int lanes) const {
    V result;
    for (int i = 0; i < kThreads; ++i) {
      result.at[i] = value.at[i ^ lanes];
    }
    return result;
  }

  /// cvt.rn.bf16x2.f32 d, a, b: a in the upper half, b in the lower.
  template <class T>
  U32 pack(const F32& low, const F32& high) const {
    return U32::template map<uint32_t>([&](int i) {
      return uint32_t{kernels::from_f32<T>(high.at[i]).bits} << 16 |
             kernels::from_f32<T>(low.at[i]).bits;
    });
  }

  /// mma.sync.aligned.m16n8k16.row.col. With g = lane / 4 and t = lane % 4, register r holds in its
  /// two halves: of a (row g + 8 (r % 2), columns 2 t + 8 (r / 2) and the next), of b (rows 2 t + 8
  /// r and the next, column g); sum i is at (g + 8 (i / 2), 2 t + i % 2).
  template <class T>
  void multiply(F32 (&sum)[4], const U32 (&a)[4], const U32& b0, const U32& b1) const {
    for (int warp = 0; warp < kThreads; warp += 32) {
      std::array<std::array<float, 16>, 16> left;
      std::array<std::array<float, 8>, 16> right;
      for (size_t lane = 0; lane < 32; ++lane) {
        const size_t g = lane / 4;
        const size_t t = lane % 4;
        const size_t thread = static_cast<size_t>(warp) + lane;
        for (size_t r = 0; r < 4; ++r) {
          auto& row = left[g + 8 * (r % 2)];
          row[2 * t + 8 * (r / 2)] = half<T>(a[r].at[thread], 0);
          row[2 * t + 8 * (r / 2) + 1] = half<T>(a[r].at[thread], 1);
        }
        for (size_t r = 0; r < 2; ++r) {
          const uint32_t word = (r == 0 ? b0 : b1).at[thread];
          right[2 * t + 8 * r][g] = half<T>(word, 0);
          right[2 * t + 8 * r + 1][g] = half<T>(word, 1);
        }
      }
      add_product(warp, left, right, sum);
    }
    counts_.products += kThreads / 32;
  }

  /// ldmatrix.x4: lane l names row l % 8 of matrix l / 8; it gets of row l / 4 the elements 2 (l %
  /// 4) and the next, of every matrix.
  void load_matrices(const I32& at, U32 (&result)[4]) const { load<false>(at, result); }
  /// ldmatrix.x4.trans: of the transposed matrices.
  void load_matrices_transposed(const I32& at, U32 (&result)[4]) const { load<true>(at, result); }

  template <class V>
  void copy_async_16(const I32& at, const V* base, const I32& offset, const Mask& is_there) const {
    copy(at, base, offset, 16, Mask(true), is_there);
  }
  void copy_async_4(const I32& at, const float* base, const I32& offset, const Mask& is_active,
                    const Mask& is_there) const {
    copy(at, base, offset, 4, is_active, is_there);
  }
  void commit() const {
    groups_.push_back(std::move(copies_));
    copies_.clear();
  }
  template <int kLeft>
  void wait() const {
    while (groups_.size() > kLeft) {
      for (const Copy& copy : groups_.front()) {
        std::array<std::byte, 16> bytes{};
        if (copy.source != nullptr) {
          std::memcpy(bytes.data(), copy.source, static_cast<size_t>(copy.bytes));
        }
        shared_.end_copy(copy.at, copy.bytes, copy.thread, bytes.data());
      }
      groups_.pop_front();
    }
  }

  void load_shared_2(const I32& at, F32 (&result)[2]) const {
    count(at, 8, Mask(true));
    for (int i = 0; i < kThreads; ++i) {
      std::array<float, 2> values;
      shared_.read(at.at[i], 8, i, values.data());
      result[0].at[i] = values[0];
      result[1].at[i] = values[1];
    }
  }
  void store_shared_4(const I32& at, const U32& word) const {
    count(at, 4, Mask(true));
    for (int i = 0; i < kThreads; ++i) {
      shared_.write(at.at[i], 4, i, &word.at[i]);
    }
  }

  F32 load_f32(const float* base, const I32& offset, const Mask& is_there) const {
    return F32::template map<float>(
        [&](int i) { return is_there.at[i] ? *reachable(base + offset.at[i], 4, false) : 0.0F; });
  }
  void store_f32(float* base, const I32& offset, const F32& value, const Mask& is_there) const {
    for (int i = 0; i < kThreads; ++i) {
      if (is_there.at[i]) {
        *reachable(base + offset.at[i], 4, true) = value.at[i];
      }
    }
  }
  int read_i32(const int32_t* address) const { return *reachable(address, 4, false); }
  I32 load_i32(const int32_t* base, const I32& offset, const Mask& is_there) const {
    return I32::template map<int32_t>(
        [&](int i) { return is_there.at[i] ? *reachable(base + offset.at[i], 4, false) : 0; });
  }
  template <class T>
  U32 load_half(const T* base, const I32& offset, const Mask& is_there) const {
    return U32::template map<uint32_t>(
        [&](int i) { return is_there.at[i] ? reachable(base + offset.at[i], 2, false)->bits : 0; });
  }
  /// The number in the lower half.
  template <class T>
  F32 widen(const U32& bits) const {
    return F32::template map<float>([&](int i) { return half<T>(bits.at[i], 0); });
  }
  template <class T>
  void store_half(T* base, const I32& offset, const U32& value, const Mask& is_there) const {
    for (int i = 0; i < kThreads; ++i) {
      if (is_there.at[i]) {
        reachable(base + offset.at[i], 2, true)->bits = static_cast<uint16_t>(value.at[i]);
      }
    }
  }
  template <class T>
  void load_16(const T* base, const I32& offset, const Mask& is_there, U32 (&words)[4]) const {
    for (int i = 0; i < kThreads; ++i) {
      std::array<uint32_t, 4> values{};
      if (is_there.at[i]) {
        std::memcpy(values.data(), reachable(base + offset.at[i], 16, false), 16);
      }
      for (size_t word = 0; word < 4; ++word) {
        words[word].at[i] = values[word];
      }
    }
  }
  template <class T>
  void store_16(T* base, const I32& offset, const U32 (&words)[4], const Mask& is_there) const {
    for (int i = 0; i < kThreads; ++i) {
      if (is_there.at[i]) {
        const std::array<uint32_t, 4> values = {words[0].at[i], words[1].at[i], words[2].at[i],
                                                words[3].at[i]};
        std::memcpy(static_cast<void*>(reachable(base + offset.at[i], 16, true)), values.data(),
                    16);
      }
    }
  }

 private:
  struct Copy {
    int64_t at;
    const void* source;  ///< null: zeros
    int bytes;
    int thread;
  };

  template <class T>
  static float half(uint32_t word, int which) {
    return kernels::to_f32(T{static_cast<uint16_t>(word >> (16 * which))});
  }

  static void add_product(int warp, const std::array<std::array<float, 16>, 16>& left,
                          const std::array<std::array<float, 8>, 16>& right, F32 (&sum)[4]) {
    std::array<std::array<float, 8>, 16> sums;
    const auto for_each = [&](const auto& use) {
      for (size_t lane = 0; lane < 32; ++lane) {
        for (size_t i = 0; i < 4; ++i) {
          use(sum[i].at[static_cast<size_t>(warp) + lane],
              sums[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2]);
        }
      }
    };
    for_each([](float of_thread, float& of_matrix) { of_matrix = of_thread; });
    for (size_t row = 0; row < 16; ++row) {
      for (size_t k = 0; k < 16; ++k) {
        for (size_t column = 0; column < 8; ++column) {
          sums[row][column] += left[row][k] * right[k][column];
        }
      }
    }
    for_each([](float& of_thread, float of_matrix) { of_thread = of_matrix; });
  }

  template <bool kTransposed>
  void load(const I32& at, U32 (&result)[4]) const {
    count(at, 16, Mask(true));
    for (int warp = 0; warp < kThreads; warp += 32) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        std::array<std::array<uint16_t, 8>, 8> elements;
        for (int row = 0; row < 8; ++row) {
          shared_.read(at.at[warp + 8 * matrix + row], 16, SharedMemory::kWarp + warp / 32,
                       elements[static_cast<size_t>(row)].data());
        }
        for (size_t lane = 0; lane < 32; ++lane) {
          const size_t row = lane / 4;
          const size_t column = lane % 4 * 2;
          const uint32_t low = kTransposed ? elements[column][row] : elements[row][column];
          const uint32_t high = kTransposed ? elements[column + 1][row] : elements[row][column + 1];
          result[matrix].at[static_cast<size_t>(warp) + lane] = low | high << 16;
        }
      }
    }
    counts_.loads += kThreads / 32;
  }

  template <class V>
  void copy(const I32& at, const V* base, const I32& offset, int bytes, const Mask& is_active,
            const Mask& is_there) const {
    count(at, bytes, is_active);
    for (int i = 0; i < kThreads; ++i) {
      if (!is_active.at[i]) {
        continue;
      }
      const void* source = nullptr;
      if (is_there.at[i]) {
        source = reachable(base + offset.at[i], bytes, false);
      }
      shared_.begin_copy(at.at[i], bytes, i);
      copies_.push_back({at.at[i], source, bytes, i});
    }
  }

  /// Accesses of 16 bytes take passes of 8 threads, of 8 bytes of 16, of 4 bytes of 32.
  void count(const I32& at, int bytes, const Mask& is_active) const {
    const int threads = 128 / bytes;
    std::vector<int64_t> addresses;
    for (int first = 0; first < kThreads; first += threads) {
      addresses.clear();
      for (int i = first; i < first + threads; ++i) {
        if (is_active.at[i]) {
          addresses.push_back(at.at[i]);
        }
      }
      shared_.count_pass(addresses, bytes);
    }
  }

  template <class V>
  V* reachable(V* address, int bytes, bool is_write) const {
    global_.check(address, bytes, is_write);
    return address;
  }

  int index_;
  SharedMemory& shared_;
  const GlobalMemory& global_;
  // A kernel sees its block as constant, as it sees the GPU.
  mutable Counts counts_;
  mutable std::vector<Copy> copies_;
  mutable std::deque<std::vector<Copy>> groups_;
};

}  // namespace headrace::device::testing
