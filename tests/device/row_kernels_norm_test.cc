#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/cpu/row_kernels.h"
#include "tests/device/row_kernels_testing.h"

namespace headrace::device {
namespace {

constexpr float kEpsilon = 1e-5F;

struct NormRun {
  NormRun(DType dtype, int64_t rows, int64_t columns, Layout layout = {})
      : x(dtype, rows, columns, layout),
        weight(dtype, 1, columns),
        y(dtype, rows, columns, layout),
        dy(dtype, rows, columns, layout),
        dx(dtype, rows, columns, layout),
        dweight(dtype, 1, columns),
        inv_rms(static_cast<size_t>(rows)) {
    x.fill_random(1, 2.0F);
    weight.fill_random(2);
    dy.fill_random(3);
    dx.fill_random(4);
  }

  void forward() {
    cpu::rms_norm_forward(x.matrix(), weight.data(), kEpsilon, y.matrix(), inv_rms.data());
  }
  void backward(bool accumulate) {
    const Bytes size = cpu::rms_norm_backward_scratch(x.rows(), x.columns());
    std::vector<std::byte> scratch(static_cast<size_t>(size.count()) + 64);
    auto* begin = scratch.data() + (64 - reinterpret_cast<size_t>(scratch.data()) % 64) % 64;
    cpu::rms_norm_backward(dy.matrix(), x.matrix(), weight.data(), inv_rms.data(), dx.matrix(),
                           accumulate, dweight.data(), {begin, size});
  }

  TestMatrix x, weight, y, dy, dx, dweight;
  std::vector<float> inv_rms;
};

double exact_inv_rms(const TestMatrix& x, int64_t row) {
  double sum = 0;
  for (int64_t c = 0; c < x.columns(); ++c) {
    sum += static_cast<double>(x.get(row, c)) * x.get(row, c);
  }
  return 1.0 / std::sqrt(sum / static_cast<double>(x.columns()) + static_cast<double>(kEpsilon));
}

TEST(RowKernels, RmsNormForwardIsLlamaRmsNorm) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t columns : {1, 7, 64, 255, 256, 257, 4097}) {
      NormRun run(dtype, 5, columns, {3, 1});
      run.forward();
      for (int64_t r = 0; r < run.x.rows(); ++r) {
        const float inv = run.inv_rms[static_cast<size_t>(r)];
        const double exact = exact_inv_rms(run.x, r);
        const double lane_length = static_cast<double>(columns) / 64;
        ASSERT_NEAR(inv, exact, (lane_length + 10) * 0x1p-24 * exact);
        for (int64_t c = 0; c < columns; ++c) {
          const float normed = rounded(dtype, run.x.get(r, c) * inv);
          ASSERT_EQ(run.y.get(r, c), rounded(dtype, normed * run.weight.get(0, c)));
        }
      }
      run.y.expect_padding_untouched();
    }
  }
}

TEST(RowKernels, RmsNormOfZerosAndNonFiniteRows) {
  NormRun run(DType::f32, 3, 100);
  for (int64_t c = 0; c < 100; ++c) {
    run.x.set(0, c, 0.0F);
  }
  run.x.set(1, 50, std::numeric_limits<float>::quiet_NaN());
  run.forward();
  EXPECT_NEAR(run.inv_rms[0], 1 / std::sqrt(kEpsilon), 1e-3);
  EXPECT_EQ(run.y.get(0, 7), 0.0F);
  EXPECT_TRUE(std::isnan(run.inv_rms[1]));
  EXPECT_TRUE(std::isnan(run.y.get(1, 0)));
  EXPECT_TRUE(std::isfinite(run.y.get(2, 0)));
}

/// sum over the row of dy * y for x moved by `delta` at `column`, in double, without the rounding
/// of the normed value.
double row_objective(const NormRun& run, int64_t row, int64_t column, double delta) {
  double squares = 0;
  double product = 0;
  for (int64_t c = 0; c < run.x.columns(); ++c) {
    const double x = run.x.get(row, c) + (c == column ? delta : 0.0);
    squares += x * x;
    product += x * run.weight.get(0, c) * run.dy.get(row, c);
  }
  return product /
         std::sqrt(squares / static_cast<double>(run.x.columns()) + static_cast<double>(kEpsilon));
}

TEST(RowKernels, RmsNormBackwardMatchesFiniteDifferences) {
  for (const DType dtype : kFloatTypes) {
    for (const bool accumulate : {false, true}) {
      NormRun run(dtype, 70, 37, {2, 1});
      run.forward();
      const NormRun before(dtype, 70, 37);
      run.backward(accumulate);
      for (int64_t r = 0; r < run.x.rows(); ++r) {
        for (int64_t c = 0; c < run.x.columns(); ++c) {
          constexpr double kStep = 1e-4;
          const double slope =
              (row_objective(run, r, c, kStep) - row_objective(run, r, c, -kStep)) / (2 * kStep);
          const double expected = slope + (accumulate ? before.dx.get(r, c) : 0.0F);
          ASSERT_NEAR(run.dx.get(r, c), expected, unit_roundoff(dtype) * std::abs(expected) + 1e-5)
              << r << ", " << c;
        }
      }
      run.dx.expect_padding_untouched();
    }
  }
}

TEST(RowKernels, RmsNormWeightGradientSumsAllRows) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t rows : {1, 31, 32, 33, 5000}) {
      NormRun run(dtype, rows, 65);
      run.forward();
      run.backward(false);
      for (int64_t c = 0; c < run.x.columns(); ++c) {
        double exact = 0;
        double size = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const double normed =
              rounded(dtype, run.x.get(r, c) * run.inv_rms[static_cast<size_t>(r)]);
          exact += normed * run.dy.get(r, c);
          size += std::abs(normed * run.dy.get(r, c));
        }
        // A partial sum of up to 40 rows, then up to 128 partial sums.
        ASSERT_NEAR(run.dweight.get(0, c), exact,
                    unit_roundoff(dtype) * std::abs(exact) + 170 * 0x1p-24 * size);
      }
    }
  }
}

TEST(RowKernels, RmsNormGivesTheSameBitsEverywhere) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits([&](Layout layout) {
      NormRun run(dtype, 150, 333, layout);
      run.forward();
      run.backward(true);
      std::vector<std::byte> bytes = run.y.elements();
      append(bytes, run.dx.elements());
      append(bytes, run.dweight.elements());
      return bytes;
    });
  }
}

TEST(RowKernels, RmsNormScratchIsCheckedAndBounded) {
  EXPECT_LE(cpu::rms_norm_backward_scratch(10'000'000, 4096), Bytes(int64_t{128} * 4096 * 4));
  NormRun run(DType::f32, 4, 8);
  std::vector<std::byte> small(8);
  EXPECT_THROW(
      cpu::rms_norm_backward(run.dy.matrix(), run.x.matrix(), run.weight.data(), run.inv_rms.data(),
                             run.dx.matrix(), false, run.dweight.data(), {small.data(), Bytes(8)}),
      InternalError);
}

}  // namespace
}  // namespace headrace::device
