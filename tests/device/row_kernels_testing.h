#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "device/kernels.h"
#include "tests/support/instruction_sets.h"

namespace headrace::device {

/// Half a unit in the last place, relative: what one rounding to the type costs.
inline double unit_roundoff(DType dtype) {
  return dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}
/// What one rounding costs near zero.
inline double absolute_roundoff(DType dtype) {
  return dtype == DType::f16 ? 0x1p-25 : 0x1p-134;
}

inline float rounded(DType dtype, float value) {
  if (dtype == DType::bf16) {
    return to_float(to_bf16(value));
  }
  return dtype == DType::f16 ? to_float(to_f16(value)) : value;
}

/// How a test matrix lies in memory: elements of padding per row, elements before the first one.
struct Layout {
  int64_t padding = 0;
  int64_t offset = 0;
};

/// A matrix in memory of its own, surrounded and interleaved with bytes that must not change.
class TestMatrix {
 public:
  TestMatrix(DType dtype, int64_t rows, int64_t columns, Layout layout = {})
      : dtype_(dtype),
        rows_(rows),
        columns_(columns),
        stride_(columns + layout.padding),
        element_(static_cast<size_t>(size_of(dtype).count())),
        bytes_(static_cast<size_t>(rows * stride_ + layout.offset + 64) * element_ + 64, kFill) {
    const size_t address = reinterpret_cast<size_t>(bytes_.data());
    begin_ = (64 - address % 64) % 64 + static_cast<size_t>(layout.offset) * element_;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        set(r, c, 0.0F);
      }
    }
  }

  Matrix matrix() { return {at(0, 0), dtype_, rows_, columns_, stride_}; }
  void* data() { return at(0, 0); }
  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  float get(int64_t row, int64_t column) const {
    const std::byte* p = at(row, column);
    if (dtype_ == DType::f32) {
      return read<float>(p);
    }
    return dtype_ == DType::bf16 ? to_float(read<Bf16>(p)) : to_float(read<F16>(p));
  }
  void set(int64_t row, int64_t column, float value) {
    std::byte* p = at(row, column);
    if (dtype_ == DType::f32) {
      std::memcpy(p, &value, 4);
    } else if (dtype_ == DType::bf16) {
      const Bf16 stored = to_bf16(value);
      std::memcpy(p, &stored, 2);
    } else {
      const F16 stored = to_f16(value);
      std::memcpy(p, &stored, 2);
    }
  }

  /// Random values around 0 with variance scale^2, from (-2.45, 2.45) * scale.
  void fill_random(uint64_t seed, float scale = 1.0F) {
    Random random(seed, 7);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) {
        const uint32_t word = random.next_u32();
        const auto sum = static_cast<float>((word & 0xffffU) + (word >> 16));
        set(r, c, scale * 2.4494897F * (sum / 65536.0F - 1.0F));
      }
    }
  }

  /// The elements alone, row after row.
  std::vector<std::byte> elements() const {
    std::vector<std::byte> out;
    const size_t row_bytes = static_cast<size_t>(columns_) * element_;
    for (int64_t r = 0; r < rows_; ++r) {
      out.insert(out.end(), at(r, 0), at(r, 0) + row_bytes);
    }
    return out;
  }

  void expect_padding_untouched() const {
    std::vector<bool> owned(bytes_.size());
    for (int64_t r = 0; r < rows_; ++r) {
      const auto first = static_cast<size_t>(at(r, 0) - bytes_.data());
      for (size_t i = 0; i < static_cast<size_t>(columns_) * element_; ++i) {
        owned[first + i] = true;
      }
    }
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (!owned[i]) {
        ASSERT_EQ(bytes_[i], kFill) << "byte " << i << " outside the matrix";
      }
    }
  }

 private:
  static constexpr std::byte kFill{0xA5};

  template <class T>
  static T read(const std::byte* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
  }
  std::byte* at(int64_t row, int64_t column) {
    return bytes_.data() + begin_ + static_cast<size_t>(row * stride_ + column) * element_;
  }
  const std::byte* at(int64_t row, int64_t column) const {
    return const_cast<TestMatrix*>(this)->at(row, column);
  }

  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  int64_t stride_;
  size_t element_;
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;
};

inline const std::vector<DType> kFloatTypes = {DType::f32, DType::bf16, DType::f16};

/// Expects run(layout) to give the same bytes for every instruction set of this machine, 1 and 2
/// threads, and several layouts.
inline void expect_same_bits(const std::function<std::vector<std::byte>(Layout)>& run) {
  const std::vector<std::byte> expected = run({});
  ASSERT_FALSE(expected.empty());
  struct Case {
    int threads;
    Layout layout;
  };
  const std::vector<Case> cases = {{1, {0, 0}}, {2, {0, 16}}, {1, {7, 0}}, {2, {32, 5}}};
  for (const int64_t set : testing::instruction_sets()) {
    const testing::ForcedInstructionSet forced(set);
    for (const auto& [threads, layout] : cases) {
      const testing::ForcedThreads limited(threads);
      ASSERT_TRUE(run(layout) == expected)
          << hwy::TargetName(set) << ", " << threads << " threads, padding " << layout.padding
          << ", offset " << layout.offset;
    }
  }
}

inline void append(std::vector<std::byte>& to, const std::vector<std::byte>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace headrace::device
