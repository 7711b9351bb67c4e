#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/cpu/row_kernels.h"
#include "tests/device/row_kernels_testing.h"

namespace headrace::device {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int64_t rows;
  int64_t columns;
};
const std::vector<Shape> kShapes = {{1, 1}, {3, 17}, {5, 64}, {2, 1000}, {1, 40000}, {300, 129}};

void set_special(TestMatrix& m) {
  const float values[] = {kInfinity, -kInfinity, kNan, 0.0F, -0.0F, 1e-40F, -1e-45F, 3e38F};
  int64_t i = 0;
  for (const float value : values) {
    if (i < m.columns()) {
      m.set(0, i++, value);
    }
  }
}

/// Same number or both NaN.
void expect_same(float got, float expected, const std::string& where) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(got)) << where;
  } else {
    ASSERT_EQ(got, expected) << where;
  }
}

TEST(RowKernels, AddIsTheRoundedSum) {
  for (const DType dtype : kFloatTypes) {
    for (const Shape shape : kShapes) {
      TestMatrix a(dtype, shape.rows, shape.columns, {3, 1});
      TestMatrix b(dtype, shape.rows, shape.columns, {0, 2});
      TestMatrix out(dtype, shape.rows, shape.columns, {5, 3});
      a.fill_random(1);
      b.fill_random(2, 3.0F);
      set_special(a);
      cpu::add(a.matrix(), b.matrix(), out.matrix());
      for (int64_t r = 0; r < shape.rows; ++r) {
        for (int64_t c = 0; c < shape.columns; ++c) {
          expect_same(out.get(r, c), rounded(dtype, a.get(r, c) + b.get(r, c)), "add");
        }
      }
      out.expect_padding_untouched();
      cpu::add(a.matrix(), b.matrix(), a.matrix());  // in place
      EXPECT_EQ(a.elements(), out.elements());
    }
  }
}

TEST(RowKernels, AddBiasAddsToEveryRow) {
  for (const DType dtype : kFloatTypes) {
    TestMatrix x(dtype, 37, 131, {3, 1});
    TestMatrix before(dtype, 37, 131);
    TestMatrix bias(dtype, 1, 131);
    x.fill_random(1);
    before.fill_random(1);
    bias.fill_random(2);
    cpu::add_bias(x.matrix(), bias.data());
    for (int64_t r = 0; r < x.rows(); ++r) {
      for (int64_t c = 0; c < x.columns(); ++c) {
        ASSERT_EQ(x.get(r, c), rounded(dtype, before.get(r, c) + bias.get(0, c)));
      }
    }
    x.expect_padding_untouched();
  }
}

TEST(RowKernels, CastRoundsEveryPairOfTypes) {
  for (const DType from : kFloatTypes) {
    for (const DType to : kFloatTypes) {
      for (const int64_t count : {0, 1, 63, 64, 65, 50001}) {
        TestMatrix source(from, 1, count, {0, 3});
        TestMatrix target(to, 1, count, {0, 1});
        source.fill_random(5, 100.0F);
        set_special(source);
        cpu::cast(source.data(), from, target.data(), to, Elements(count));
        for (int64_t i = 0; i < count; ++i) {
          expect_same(target.get(0, i), rounded(to, source.get(0, i)), "cast");
        }
        target.expect_padding_untouched();
      }
    }
  }
}

TEST(RowKernels, RopeRotatesAndRotatesBack) {
  constexpr int64_t kHeads = 3;
  constexpr int64_t kSeq = 5;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t head_dim : {2, 6, 64, 128}) {
      TestMatrix table(DType::f32, kSeq, head_dim);
      for (int64_t p = 0; p < kSeq; ++p) {
        for (int64_t i = 0; i < head_dim / 2; ++i) {
          const double angle = static_cast<double>(p) * std::pow(0.5, static_cast<double>(i));
          table.set(p, i, static_cast<float>(std::cos(angle)));
          table.set(p, head_dim / 2 + i, static_cast<float>(std::sin(angle)));
        }
      }
      TestMatrix x(dtype, 2 * kSeq, kHeads * head_dim, {4, 1});
      TestMatrix before(dtype, 2 * kSeq, kHeads * head_dim);
      x.fill_random(3);
      before.fill_random(3);
      const auto* cos_sin = static_cast<const float*>(table.data());
      // Two documents share the second sequence.
      const int32_t begins[2 * kSeq] = {0, 0, 0, 0, 0, 0, 0, 2, 2, 2};
      cpu::rope(x.matrix(), kHeads, head_dim, kSeq, begins, cos_sin, false);
      for (int64_t r = 0; r < x.rows(); ++r) {
        for (int64_t c = 0; c < x.columns(); ++c) {
          const int64_t i = c % head_dim;
          const int64_t half = head_dim / 2;
          const bool is_low = i < half;
          const int64_t position = r < kSeq + 2 ? r % kSeq : r - kSeq - 2;
          const double cosine = table.get(position, i % half);
          const double sine = table.get(position, half + i % half);
          const double self = before.get(r, c);
          const double other = before.get(r, is_low ? c + half : c - half);
          const double exact = self * cosine + (is_low ? -other : other) * sine;
          const double size = std::abs(self * cosine) + std::abs(other * sine);
          ASSERT_NEAR(x.get(r, c), exact,
                      unit_roundoff(dtype) * std::abs(exact) + 2 * 0x1p-24 * size +
                          absolute_roundoff(dtype));
        }
      }
      x.expect_padding_untouched();
      cpu::rope(x.matrix(), kHeads, head_dim, kSeq, begins, cos_sin, true);
      for (int64_t r = 0; r < x.rows(); ++r) {
        for (int64_t c = 0; c < x.columns(); ++c) {
          ASSERT_NEAR(x.get(r, c), before.get(r, c), 16 * unit_roundoff(dtype));
        }
      }
    }
  }
}

double silu_of(double x) {
  return x / (1.0 + std::exp(-x));
}

TEST(RowKernels, SwigluForward) {
  for (const DType dtype : kFloatTypes) {
    for (const Shape shape : kShapes) {
      TestMatrix gate(dtype, shape.rows, shape.columns, {1, 1});
      TestMatrix up(dtype, shape.rows, shape.columns);
      TestMatrix out(dtype, shape.rows, shape.columns, {2, 3});
      gate.fill_random(1, 4.0F);
      up.fill_random(2);
      cpu::swiglu_forward(gate.matrix(), up.matrix(), out.matrix());
      for (int64_t r = 0; r < shape.rows; ++r) {
        for (int64_t c = 0; c < shape.columns; ++c) {
          const double exact = silu_of(gate.get(r, c)) * up.get(r, c);
          ASSERT_NEAR(
              out.get(r, c), exact,
              (unit_roundoff(dtype) + 7 * 0x1p-24) * std::abs(exact) + absolute_roundoff(dtype));
        }
      }
      out.expect_padding_untouched();
    }
  }
}

TEST(RowKernels, SwigluBackwardMatchesFiniteDifferences) {
  for (const DType dtype : kFloatTypes) {
    TestMatrix gate(dtype, 9, 203, {1, 1});
    TestMatrix up(dtype, 9, 203);
    TestMatrix dout(dtype, 9, 203, {4, 2});
    TestMatrix dgate(dtype, 9, 203, {3, 1});
    TestMatrix dup(dtype, 9, 203);
    gate.fill_random(1, 3.0F);
    up.fill_random(2);
    dout.fill_random(3);
    cpu::swiglu_backward(dout.matrix(), gate.matrix(), up.matrix(), dgate.matrix(), dup.matrix());
    for (int64_t r = 0; r < gate.rows(); ++r) {
      for (int64_t c = 0; c < gate.columns(); ++c) {
        const double g = gate.get(r, c);
        const double u = up.get(r, c);
        const double d = dout.get(r, c);
        constexpr double kStep = 1e-5;
        const double slope = (silu_of(g + kStep) - silu_of(g - kStep)) / (2 * kStep);
        ASSERT_NEAR(dgate.get(r, c), d * u * slope,
                    unit_roundoff(dtype) * std::abs(d * u * slope) + 1e-6 * std::abs(d * u) +
                        absolute_roundoff(dtype));
        ASSERT_NEAR(dup.get(r, c), d * silu_of(g),
                    (unit_roundoff(dtype) + 8 * 0x1p-24) * std::abs(d * silu_of(g)) +
                        absolute_roundoff(dtype));
      }
    }
    dgate.expect_padding_untouched();
    // dgate and dup may be gate and up.
    cpu::swiglu_backward(dout.matrix(), gate.matrix(), up.matrix(), gate.matrix(), up.matrix());
    EXPECT_EQ(gate.elements(), dgate.elements());
    EXPECT_EQ(up.elements(), dup.elements());
  }
}

TEST(RowKernels, ElementwiseKernelsGiveTheSameBitsEverywhere) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits([&](Layout layout) {
      TestMatrix gate(dtype, 130, 257, layout);
      TestMatrix up(dtype, 130, 257, layout);
      TestMatrix dout(dtype, 130, 257, layout);
      TestMatrix out(dtype, 130, 257, layout);
      TestMatrix dgate(dtype, 130, 257, layout);
      TestMatrix dup(dtype, 130, 257, layout);
      gate.fill_random(1, 3.0F);
      up.fill_random(2);
      dout.fill_random(3);
      set_special(up);
      cpu::swiglu_forward(gate.matrix(), up.matrix(), out.matrix());
      cpu::swiglu_backward(dout.matrix(), gate.matrix(), up.matrix(), dgate.matrix(), dup.matrix());
      std::vector<std::byte> bytes = out.elements();
      append(bytes, dgate.elements());
      append(bytes, dup.elements());
      cpu::add(gate.matrix(), dout.matrix(), out.matrix());
      append(bytes, out.elements());
      TestMatrix narrow(DType::f16, 1, 130 * 257, {0, layout.offset});
      TestMatrix wide(dtype, 1, 130 * 257, {0, layout.offset});
      wide.fill_random(9);
      cpu::cast(wide.data(), dtype, narrow.data(), DType::f16, Elements(130 * 257));
      append(bytes, narrow.elements());
      return bytes;
    });
    expect_same_bits([&](Layout layout) {
      TestMatrix table(DType::f32, 11, 96);
      TestMatrix x(dtype, 44, 5 * 96, layout);
      table.fill_random(1);
      x.fill_random(2);
      cpu::rope(x.matrix(), 5, 96, 11, nullptr, static_cast<const float*>(table.data()), false);
      return x.elements();
    });
  }
}

TEST(RowKernels, BrokenPreconditionsAreInternalErrors) {
  TestMatrix a(DType::f32, 4, 8);
  TestMatrix b(DType::bf16, 4, 8);
  TestMatrix c(DType::f32, 4, 9);
  EXPECT_THROW(cpu::add(a.matrix(), b.matrix(), a.matrix()), InternalError);
  EXPECT_THROW(cpu::add(a.matrix(), c.matrix(), a.matrix()), InternalError);
  EXPECT_THROW(cpu::swiglu_forward(a.matrix(), a.matrix(), b.matrix()), InternalError);
  const float table[8] = {};
  EXPECT_THROW(cpu::rope(a.matrix(), 2, 3, 1, nullptr, table, false), InternalError);
  EXPECT_THROW(cpu::cast(table, DType::i32, a.data(), DType::f32, Elements(1)), InternalError);
  Matrix bad = a.matrix();
  bad.stride = 7;
  EXPECT_THROW(cpu::add_bias(bad, table), InternalError);
}

}  // namespace
}  // namespace headrace::device
