#include "tests/device/kernels_suite.h"

namespace headrace::device::testing {
namespace {

TEST_P(KernelsTest, Embedding) {
  for (const DType dtype : kDTypes) {
    const int64_t vocabulary = 9;
    TestMatrix table = normal(dtype, vocabulary, 37, 3);
    TestMatrix out = matrix(dtype, 13, 37, 1);
    std::vector<int32_t> ids(13);
    std::generate(ids.begin(), ids.end(),
                  [&] { return static_cast<int32_t>(random_.below(vocabulary - 1)); });
    const auto device_ids = array(ids);
    const TableRange whole{0, vocabulary};
    kernels().embedding_forward(*stream_, table.view(), whole, device_ids.data(), out.view());
    out.download();
    expect_all(
        out, "embedding",
        [&](int64_t r, int64_t c) { return table(ids[static_cast<size_t>(r)], c); },
        [](int64_t, int64_t) { return 0.0; });

    TestMatrix dout = normal(dtype, 13, 37, 2);
    TestMatrix dtable = normal(dtype, vocabulary, 37, 1);
    kernels().embedding_backward(*stream_, dout.view(), device_ids.data(), dtable.view(), whole);
    dtable.download();
    const auto sum = [&](int64_t v, int64_t c, bool magnitude) {
      double total = 0;
      for (int64_t t = 0; t < 13; ++t) {
        const double term = ids[static_cast<size_t>(t)] == v ? dout(t, c) : 0.0;
        total += magnitude ? std::abs(term) : term;
      }
      return total;
    };
    expect_all(
        dtable, "embedding gradient", [&](int64_t v, int64_t c) { return sum(v, c, false); },
        [&](int64_t v, int64_t c) {
          return 13 * kFloat * sum(v, c, true) + rounding_error(dtype, sum(v, c, false));
        });
  }
}

class RmsNormTest : public KernelsTest {
 protected:
  static constexpr int64_t kRows = 11;
  static constexpr int64_t kColumns = 77;
  static constexpr float kEpsilon = 1e-5F;
  static constexpr double kFloatSums = (kColumns + 8) * kFloat;

  static double inverse(const TestMatrix& x, int64_t r) {
    double squares = 0;
    for (int64_t c = 0; c < kColumns; ++c) {
      squares += x(r, c) * x(r, c);
    }
    return 1 / std::sqrt(squares / kColumns + kEpsilon);
  }
  static double normalized(const TestMatrix& x, int64_t r, int64_t c) {
    return x(r, c) * inverse(x, r);
  }
  /// What rounding results near zero may add.
  static double tiny(DType dtype) { return dtype == DType::f16 ? 0x1p-22 : 1e-36; }

  static void expect_dx(DType dtype, const TestMatrix& x, const TestMatrix& weight,
                        const TestMatrix& dy, const TestMatrix& before, const TestMatrix& dx) {
    const auto projection = [&](int64_t r, bool magnitude) {
      double total = 0;
      for (int64_t c = 0; c < kColumns; ++c) {
        const double term = dy(r, c) * weight(0, c) * normalized(x, r, c);
        total += magnitude ? std::abs(term) : term;
      }
      return total / kColumns;
    };
    const auto expected = [&](int64_t r, int64_t c) {
      const double slope = dy(r, c) * weight(0, c) - normalized(x, r, c) * projection(r, false);
      return inverse(x, r) * slope + before(r, c);
    };
    expect_all(dx, "rms_norm dx", expected, [&](int64_t r, int64_t c) {
      const double magnitude =
          inverse(x, r) *
          (std::abs(dy(r, c) * weight(0, c)) + std::abs(normalized(x, r, c)) * projection(r, true));
      return steps(dtype) * magnitude + rounding_error(dtype, expected(r, c)) + tiny(dtype);
    });
  }

  static void expect_dweight(DType dtype, const TestMatrix& x, const TestMatrix& dy,
                             const TestMatrix& dweight) {
    const auto sum = [&](int64_t c, bool magnitude) {
      double total = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        const double term = dy(r, c) * normalized(x, r, c);
        total += magnitude ? std::abs(term) : term;
      }
      return total;
    };
    expect_all(
        dweight, "rms_norm dweight", [&](int64_t, int64_t c) { return sum(c, false); },
        [&](int64_t, int64_t c) { return steps(dtype) * sum(c, true) + tiny(dtype); });
  }

 private:
  /// The product with the weight and the normalized x may be rounded to the dtype on the way.
  static double steps(DType dtype) { return 4 * unit_roundoff(dtype) + 4 * kFloatSums; }
};

TEST_P(RmsNormTest, ForwardAndBackward) {
  for (const DType dtype : kDTypes) {
    TestMatrix x = normal(dtype, kRows, kColumns, 3);
    TestMatrix weight = normal(dtype, 1, kColumns, 0);
    TestMatrix y = matrix(dtype, kRows, kColumns, 1);
    TestMatrix inv_rms = matrix(DType::f32, 1, kRows);
    kernels().rms_norm_forward(*stream_, x.view(), weight.data(), kEpsilon, y.view(),
                               inv_rms.data<float>());
    y.download();
    inv_rms.download();
    expect_all(
        inv_rms, "inv_rms", [&](int64_t, int64_t r) { return inverse(x, r); },
        [&](int64_t, int64_t r) { return kFloatSums * inverse(x, r); });
    const auto expected = [&](int64_t r, int64_t c) { return normalized(x, r, c) * weight(0, c); };
    expect_all(y, "rms_norm", expected, [&](int64_t r, int64_t c) {
      return std::abs(expected(r, c)) * (2.1 * unit_roundoff(dtype) + kFloatSums) +
             tiny(dtype) * (1 + std::abs(weight(0, c)));
    });

    for (const bool accumulate : {false, true}) {
      TestMatrix dy = normal(dtype, kRows, kColumns, 2);
      TestMatrix dx = normal(dtype, kRows, kColumns, 1);
      TestMatrix before = matrix(dtype, kRows, kColumns);
      before.fill([&](int64_t r, int64_t c) { return accumulate ? dx(r, c) : 0.0; });
      TestMatrix dweight = matrix(dtype, 1, kColumns);
      const Workspace workspace = scratch(kernels().rms_norm_backward_scratch(kRows, kColumns));
      kernels().rms_norm_backward(*stream_, dy.view(), x.view(), weight.data(),
                                  inv_rms.data<float>(), dx.view(), accumulate, dweight.data(),
                                  workspace);
      expect_dx(dtype, x, weight, dy, before, dx.download());
      expect_dweight(dtype, x, dy, dweight.download());
    }
  }
}

TEST_P(KernelsTest, RopeAndItsInverse) {
  for (const DType dtype : kDTypes) {
    const int64_t heads = 3;
    const int64_t dim = 22;
    const int64_t half = dim / 2;
    const int64_t seq = 5;
    std::vector<float> table(static_cast<size_t>(seq * dim));
    for (int64_t t = 0; t < seq; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = 0.3 * static_cast<double>(t) / static_cast<double>(i + 1);
        table[static_cast<size_t>(t * dim + i)] = static_cast<float>(std::cos(angle));
        table[static_cast<size_t>(t * dim + half + i)] = static_cast<float>(std::sin(angle));
      }
    }
    const auto cos_sin = array(table);
    // Sequences that are one document, and such that several share.
    const std::vector<int32_t> whole(static_cast<size_t>(2 * seq), 0);
    const std::vector<int32_t> shared = {0, 1, 1, 1, 4, 0, 0, 0, 3, 3};
    const auto begins = array(shared);
    for (const int variant : {0, 1, 2, 3}) {
      const bool inverse = variant % 2 == 1;
      const bool packed = variant / 2 == 1;
      TestMatrix x = normal(dtype, 2 * seq, heads * dim, 3);
      TestMatrix before = matrix(dtype, 2 * seq, heads * dim);
      before.fill([&](int64_t r, int64_t c) { return x(r, c); });
      kernels().rope(*stream_, x.view(), heads, dim, seq, packed ? begins.data() : nullptr,
                     cos_sin.data(), inverse);
      x.download();
      const auto parts = [&](int64_t r, int64_t c) {
        const int64_t i = c % dim;
        const int64_t base = c - i;
        const int32_t begin = (packed ? shared : whole)[static_cast<size_t>(r)];
        const auto entry = static_cast<size_t>((r % seq - begin) * dim + i % half);
        const double cosine = table[entry];
        const double sine = table[entry + static_cast<size_t>(half)] * (inverse ? -1.0 : 1.0);
        const double partner = before(r, base + (i + half) % dim);
        return std::pair(before(r, c) * cosine, (i < half ? -1.0 : 1.0) * partner * sine);
      };
      expect_all(
          x, "rope", [&](int64_t r, int64_t c) { return parts(r, c).first + parts(r, c).second; },
          [&](int64_t r, int64_t c) {
            const auto [a, b] = parts(r, c);
            return 3 * kFloat * (std::abs(a) + std::abs(b)) + rounding_error(dtype, a + b);
          });
    }
  }
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

TEST_P(KernelsTest, Swiglu) {
  for (const DType dtype : kDTypes) {
    TestMatrix gate = normal(dtype, 9, 53, 3, 6);
    TestMatrix up = normal(dtype, 9, 53, 1);
    TestMatrix out = matrix(dtype, 9, 53, 2);
    kernels().swiglu_forward(*stream_, gate.view(), up.view(), out.view());
    out.download();
    const double relative = 16 * kFloat + 2.1 * unit_roundoff(dtype);
    const double tiny = dtype == DType::f16 ? 0x1p-22 : 1e-36;
    const auto silu = [&](int64_t r, int64_t c) { return gate(r, c) * sigmoid(gate(r, c)); };
    expect_all(
        out, "swiglu", [&](int64_t r, int64_t c) { return silu(r, c) * up(r, c); },
        [&](int64_t r, int64_t c) { return relative * std::abs(silu(r, c) * up(r, c)) + tiny; });

    TestMatrix dout = normal(dtype, 9, 53, 0);
    TestMatrix gate_before = matrix(dtype, 9, 53);
    gate_before.fill([&](int64_t r, int64_t c) { return gate(r, c); });
    TestMatrix up_before = matrix(dtype, 9, 53);
    up_before.fill([&](int64_t r, int64_t c) { return up(r, c); });
    // In place: dgate and dup may alias gate and up.
    kernels().swiglu_backward(*stream_, dout.view(), gate.view(), up.view(), gate.view(),
                              up.view());
    gate.download();
    up.download();
    const auto slope = [&](int64_t r, int64_t c, bool magnitude) {
      const double g = gate_before(r, c);
      const double s = sigmoid(g);
      const double second = g * s * (1 - s);
      return magnitude ? s + std::abs(second) : s + second;
    };
    expect_all(
        gate, "swiglu dgate",
        [&](int64_t r, int64_t c) { return dout(r, c) * up_before(r, c) * slope(r, c, false); },
        [&](int64_t r, int64_t c) {
          return 1.5 * relative * std::abs(dout(r, c) * up_before(r, c)) * slope(r, c, true) + tiny;
        });
    const auto dup = [&](int64_t r, int64_t c) {
      return dout(r, c) * gate_before(r, c) * sigmoid(gate_before(r, c));
    };
    expect_all(up, "swiglu dup", dup,
               [&](int64_t r, int64_t c) { return relative * std::abs(dup(r, c)) + tiny; });
  }
}

TEST_P(KernelsTest, Additions) {
  for (const DType dtype : kDTypes) {
    TestMatrix a = normal(dtype, 7, 41, 1);
    TestMatrix b = normal(dtype, 7, 41, 2);
    TestMatrix out = matrix(dtype, 7, 41, 3);
    kernels().add(*stream_, a.view(), b.view(), out.view());
    out.download();
    const auto sum = [&](int64_t r, int64_t c) { return a(r, c) + b(r, c); };
    const auto bound = [&](int64_t r, int64_t c) { return rounding_error(dtype, sum(r, c)); };
    expect_all(out, "add", sum, bound);

    TestMatrix bias = normal(dtype, 1, 41, 0);
    kernels().add_bias(*stream_, out.view(), bias.data());
    TestMatrix before = matrix(dtype, 7, 41);
    before.fill([&](int64_t r, int64_t c) { return out(r, c); });
    out.download();
    expect_all(
        out, "add_bias", [&](int64_t r, int64_t c) { return before(r, c) + bias(0, c); },
        [&](int64_t r, int64_t c) { return rounding_error(dtype, before(r, c) + bias(0, c)); });

    TestMatrix dbias = matrix(dtype, 1, 41);
    kernels().bias_gradient(*stream_, a.view(), dbias.data());
    dbias.download();
    for (int64_t c = 0; c < 41; ++c) {
      double total = 0;
      double magnitude = 0;
      for (int64_t r = 0; r < 7; ++r) {
        total += a(r, c);
        magnitude += std::abs(a(r, c));
      }
      expect_near(dbias(0, c), total, 7 * kFloat * magnitude + rounding_error(dtype, total),
                  [&] { return fmt::format("bias_gradient at {}", c); });
    }
  }
}

TEST_P(KernelsTest, CastsRoundToNearestAndKeepNan) {
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      TestMatrix source = matrix(from, 1, 203);
      source.fill([&](int64_t, int64_t c) {
        return c == 5 ? NAN : c == 6 ? INFINITY : c == 7 ? -0.0 : 100.0 * random_.normal();
      });
      TestMatrix target = matrix(to, 1, 203);
      kernels().cast(*stream_, source.data(), from, target.data(), to, Elements(203));
      target.download();
      for (int64_t c = 0; c < 203; ++c) {
        std::array<std::byte, 4> rounded{};
        encode(to, source(0, c), rounded.data());
        expect_near(target(0, c), decode(to, rounded.data()), 0, [&] {
          return fmt::format("{} to {} at {}", to_string(from), to_string(to), c);
        });
      }
      EXPECT_EQ(target(0, 6), INFINITY);
    }
  }
}

TEST_P(KernelsTest, NanIsNotHidden) {
  TestMatrix x = normal(DType::bf16, 4, 33, 0);
  x.fill([&](int64_t r, int64_t c) { return r == 2 && c == 32 ? NAN : x(r, c); });
  TestMatrix weight = normal(DType::bf16, 1, 33, 0);
  TestMatrix y = matrix(DType::bf16, 4, 33);
  TestMatrix inv_rms = matrix(DType::f32, 1, 4);
  kernels().rms_norm_forward(*stream_, x.view(), weight.data(), 1e-5F, y.view(),
                             inv_rms.data<float>());
  TestMatrix out = matrix(DType::bf16, 4, 33);
  kernels().swiglu_forward(*stream_, x.view(), x.view(), out.view());
  y.download();
  out.download();
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_EQ(std::isnan(y(r, 0)), r == 2);
    EXPECT_EQ(std::isnan(out(r, 32)), r == 2);
    EXPECT_FALSE(std::isnan(out(r, 0)));
  }
}

TEST_P(KernelsTest, RefuseBrokenPreconditionsWhenPosted) {
  TestMatrix a = matrix(DType::f32, 4, 6);
  TestMatrix wide = matrix(DType::f32, 4, 8);
  TestMatrix half = matrix(DType::bf16, 4, 6);
  TestMatrix inv_rms = matrix(DType::f32, 1, 4);
  EXPECT_THROW(kernels().add(*stream_, a.view(), wide.view(), a.view()), InternalError);
  EXPECT_THROW(kernels().add(*stream_, a.view(), half.view(), a.view()), InternalError);
  EXPECT_THROW(kernels().swiglu_forward(*stream_, a.view(), a.view(), half.view()), InternalError);
  EXPECT_THROW(kernels().rms_norm_forward(*stream_, a.view(), nullptr, 1e-5F, a.view(),
                                          inv_rms.data<float>()),
               InternalError);
  EXPECT_THROW(kernels().rope(*stream_, a.view(), 2, 3, 4, nullptr, a.data<float>(), false),
               InternalError);
  EXPECT_THROW(kernels().rope(*stream_, a.view(), 1, 6, 3, nullptr, a.data<float>(), false),
               InternalError);
  EXPECT_THROW(kernels().embedding_forward(*stream_, wide.view(), {0, 4}, nullptr, wide.view()),
               InternalError);
  EXPECT_THROW(kernels().cast(*stream_, a.data(), DType::i32, wide.data(), DType::f32, Elements(4)),
               InternalError);
  EXPECT_THROW(kernels().cross_entropy_start(*stream_, {}, 3), InternalError);
  EXPECT_NO_THROW(stream_->synchronize());
}

HEADRACE_DEVICE_SUITE(KernelsTest);
HEADRACE_DEVICE_SUITE(RmsNormTest);

}  // namespace
}  // namespace headrace::device::testing
