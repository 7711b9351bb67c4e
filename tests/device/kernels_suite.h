#pragma once

#include <algorithm>
#include <array>

#include "tests/device/device_suite.h"

namespace headrace::device::testing {

inline constexpr std::array<DType, 3> kDTypes = {DType::f32, DType::bf16, DType::f16};
/// Largest relative error of one fp32 operation.
inline constexpr double kFloat = 0x1p-24;

/// Element and row kernels through the device, against their definitions in double. Bounds: one
/// rounding to the dtype per step that is stored or defined as rounded, and fp32 errors of sums.
class KernelsTest : public DeviceTest {
 protected:
  TestMatrix normal(DType dtype, int64_t rows, int64_t columns, int64_t padding, double scale = 1) {
    TestMatrix made = matrix(dtype, rows, columns, padding, padding);
    made.fill_normal(random_, scale);
    return made;
  }
  std::vector<float> normal_floats(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    std::generate(values.begin(), values.end(), [&] { return random_.normal(); });
    return values;
  }

  /// Compares every element with expected(r, c) within bound(r, c).
  template <class Expected, class Bound>
  static void expect_all(const TestMatrix& actual, const std::string& name,
                         const Expected& expected, const Bound& bound) {
    for (int64_t r = 0; r < actual.rows() && !HasFailure(); ++r) {
      for (int64_t c = 0; c < actual.columns(); ++c) {
        expect_near(actual(r, c), expected(r, c), bound(r, c),
                    [&] { return fmt::format("{} at ({}, {})", name, r, c); });
      }
    }
  }

  Random random_{11, 0};
};

}  // namespace headrace::device::testing
