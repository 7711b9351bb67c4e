#include <algorithm>
#include <array>

#include "tests/device/device_suite.h"

// The element and row kernels through the device, against their definitions in double. Bounds: one
// rounding to the dtype per step that is stored or defined as rounded, and fp32 errors of sums.
namespace headrace::device::testing {
namespace {

constexpr std::array<DType, 3> kDTypes = {DType::f32, DType::bf16, DType::f16};
constexpr double kFloat = 0x1p-24;

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

TEST_P(KernelsTest, Embedding) {
  for (const DType dtype : kDTypes) {
    const int64_t vocabulary = 9;
    TestMatrix table = normal(dtype, vocabulary, 37, 3);
    TestMatrix out = matrix(dtype, 13, 37, 1);
    std::vector<int32_t> ids(13);
    std::generate(ids.begin(), ids.end(),
                  [&] { return static_cast<int32_t>(random_.below(vocabulary - 1)); });
    const auto device_ids = array(ids);
    kernels().embedding_forward(*stream_, table.view(), device_ids.data(), out.view());
    out.download();
    expect_all(
        out, "embedding",
        [&](int64_t r, int64_t c) { return table(ids[static_cast<size_t>(r)], c); },
        [](int64_t, int64_t) { return 0.0; });

    TestMatrix dout = normal(dtype, 13, 37, 2);
    TestMatrix dtable = normal(dtype, vocabulary, 37, 1);
    kernels().embedding_backward(*stream_, dout.view(), device_ids.data(), dtable.view());
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

TEST_P(KernelsTest, RmsNorm) {
  constexpr float kEpsilon = 1e-5F;
  for (const DType dtype : kDTypes) {
    const int64_t rows = 11;
    const int64_t columns = 77;
    TestMatrix x = normal(dtype, rows, columns, 3);
    TestMatrix weight = normal(dtype, 1, columns, 0);
    TestMatrix y = matrix(dtype, rows, columns, 1);
    TestMatrix inv_rms = matrix(DType::f32, 1, rows);
    kernels().rms_norm_forward(*stream_, x.view(), weight.data(), kEpsilon, y.view(),
                               inv_rms.data<float>());
    y.download();
    inv_rms.download();
    const double fp32 = static_cast<double>(columns + 8) * kFloat;
    const auto inverse = [&](int64_t r) {
      double squares = 0;
      for (int64_t c = 0; c < columns; ++c) {
        squares += x(r, c) * x(r, c);
      }
      return 1 / std::sqrt(squares / static_cast<double>(columns) + kEpsilon);
    };
    for (int64_t r = 0; r < rows; ++r) {
      expect_near(inv_rms(0, r), inverse(r), fp32 * inverse(r),
                  [&] { return fmt::format("inv_rms {}", r); });
    }
    const auto normalized = [&](int64_t r, int64_t c) { return x(r, c) * inverse(r); };
    const double two_roundings = 2.1 * unit_roundoff(dtype) + fp32;
    const double tiny = dtype == DType::f16 ? 0x1p-22 : 1e-36;
    expect_all(
        y, "rms_norm", [&](int64_t r, int64_t c) { return normalized(r, c) * weight(0, c); },
        [&](int64_t r, int64_t c) {
          return std::abs(normalized(r, c) * weight(0, c)) * two_roundings +
                 tiny * (1 + std::abs(weight(0, c)));
        });

    for (const bool accumulate : {false, true}) {
      TestMatrix dy = normal(dtype, rows, columns, 2);
      TestMatrix dx = normal(dtype, rows, columns, 1);
      std::vector<double> before;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          before.push_back(accumulate ? dx(r, c) : 0.0);
        }
      }
      TestMatrix dweight = matrix(dtype, 1, columns);
      const Workspace workspace = scratch(kernels().rms_norm_backward_scratch(rows, columns));
      kernels().rms_norm_backward(*stream_, dy.view(), x.view(), weight.data(),
                                  inv_rms.data<float>(), dx.view(), accumulate, dweight.data(),
                                  workspace);
      dx.download();
      dweight.download();
      const auto projection = [&](int64_t r, bool magnitude) {
        double total = 0;
        for (int64_t c = 0; c < columns; ++c) {
          const double term = dy(r, c) * weight(0, c) * normalized(r, c);
          total += magnitude ? std::abs(term) : term;
        }
        return total / static_cast<double>(columns);
      };
      const auto old = [&](int64_t r, int64_t c) {
        return before[static_cast<size_t>(r * columns + c)];
      };
      const auto gradient = [&](int64_t r, int64_t c) {
        return inverse(r) * (dy(r, c) * weight(0, c) - normalized(r, c) * projection(r, false));
      };
      // The product with the weight and the normalized x may be rounded to the dtype on the way.
      const double factor = 4 * unit_roundoff(dtype) + 4 * fp32;
      expect_all(
          dx, "rms_norm dx", [&](int64_t r, int64_t c) { return gradient(r, c) + old(r, c); },
          [&](int64_t r, int64_t c) {
            const double magnitude =
                inverse(r) * (std::abs(dy(r, c) * weight(0, c)) +
                              std::abs(normalized(r, c)) * projection(r, true));
            return factor * magnitude + rounding_error(dtype, gradient(r, c) + old(r, c)) + tiny;
          });
      const auto weight_sum = [&](int64_t c, bool magnitude) {
        double total = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const double term = dy(r, c) * normalized(r, c);
          total += magnitude ? std::abs(term) : term;
        }
        return total;
      };
      expect_all(
          dweight, "rms_norm dweight", [&](int64_t, int64_t c) { return weight_sum(c, false); },
          [&](int64_t, int64_t c) { return factor * weight_sum(c, true) + tiny; });
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
    for (const bool inverse : {false, true}) {
      TestMatrix x = normal(dtype, 2 * seq, heads * dim, 3);
      TestMatrix before = matrix(dtype, 2 * seq, heads * dim);
      before.fill([&](int64_t r, int64_t c) { return x(r, c); });
      kernels().rope(*stream_, x.view(), heads, dim, seq, cos_sin.data(), inverse);
      x.download();
      const auto parts = [&](int64_t r, int64_t c) {
        const int64_t i = c % dim;
        const int64_t base = c - i;
        const auto entry = static_cast<size_t>(r % seq * dim + i % half);
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

class CrossEntropyTest : public KernelsTest {
 protected:
  static constexpr int64_t kTokens = 10;
  static constexpr int64_t kVocabulary = 143;
  static constexpr int64_t kTile = 50;

  std::vector<int32_t> labels() {
    std::vector<int32_t> made(kTokens);
    for (auto& label : made) {
      label = static_cast<int32_t>(random_.below(kVocabulary));
    }
    made[3] = -100;
    return made;
  }
  Matrix tile_of(const TestMatrix& logits, int64_t first) const {
    Matrix tile = logits.view();
    tile.data = logits.data<float>() + first;
    tile.columns = std::min(kTile, kVocabulary - first);
    return tile;
  }
  static double log_sum_exp(const TestMatrix& logits, int64_t t) {
    double max = -INFINITY;
    for (int64_t v = 0; v < kVocabulary; ++v) {
      max = std::max(max, logits(t, v));
    }
    double sum = 0;
    for (int64_t v = 0; v < kVocabulary; ++v) {
      sum += std::exp(logits(t, v) - max);
    }
    return max + std::log(sum);
  }
};

TEST_P(CrossEntropyTest, LossAndGradientOverTiles) {
  TestMatrix logits = normal(DType::f32, kTokens, kVocabulary, 5, 8);
  const std::vector<int32_t> label_values = labels();
  const auto device_labels = array(label_values);
  const auto max = array(std::vector<float>(kTokens, NAN));
  const auto sum = array(std::vector<float>(kTokens, NAN));
  const auto target = array(std::vector<float>(kTokens, NAN));
  auto loss = array(std::vector<double>{NAN});
  const CrossEntropyState state{max.data(), sum.data(), target.data()};
  kernels().cross_entropy_start(*stream_, state, kTokens);
  for (int64_t first = 0; first < kVocabulary; first += kTile) {
    kernels().cross_entropy_tile(*stream_, tile_of(logits, first), first, device_labels.data(),
                                 state);
  }
  kernels().cross_entropy_loss(*stream_, state, device_labels.data(), kTokens, loss.data());
  double expected = 0;
  double magnitude = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const int32_t label = label_values[static_cast<size_t>(t)];
    if (label != -100) {
      expected += log_sum_exp(logits, t) - logits(t, label);
      magnitude += std::abs(log_sum_exp(logits, t)) + 1;
    }
  }
  expect_near(loss.download()[0], expected, magnitude * kFloat * (kVocabulary + 16),
              [] { return "loss"; });

  for (const DType dtype : kDTypes) {
    constexpr float kScale = 3.5F;
    for (int64_t first = 0; first < kVocabulary; first += kTile) {
      const Matrix tile = tile_of(logits, first);
      TestMatrix dlogits = matrix(dtype, kTokens, tile.columns, 3);
      kernels().cross_entropy_gradient(*stream_, tile, first, device_labels.data(), state, kScale,
                                       dlogits.view());
      dlogits.download();
      const auto gradient = [&](int64_t t, int64_t c) {
        const int32_t label = label_values[static_cast<size_t>(t)];
        const double p = std::exp(logits(t, first + c) - log_sum_exp(logits, t));
        return label == -100 ? 0.0 : (p - (label == first + c ? 1.0 : 0.0)) * kScale;
      };
      expect_all(dlogits, "cross-entropy gradient", gradient, [&](int64_t t, int64_t c) {
        const double p = std::exp(logits(t, first + c) - log_sum_exp(logits, t));
        // A probability errs by the sum over the vocabulary and by the rounded exponent.
        const double exponent = std::abs(logits(t, first + c)) + std::abs(log_sum_exp(logits, t));
        return kScale * (p * (kVocabulary + 16 + 2 * exponent) + 4) * kFloat +
               rounding_error(dtype, gradient(t, c));
      });
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
  EXPECT_THROW(kernels().rope(*stream_, a.view(), 2, 3, 4, a.data<float>(), false), InternalError);
  EXPECT_THROW(kernels().rope(*stream_, a.view(), 1, 6, 3, a.data<float>(), false), InternalError);
  EXPECT_THROW(kernels().embedding_forward(*stream_, wide.view(), nullptr, wide.view()),
               InternalError);
  EXPECT_THROW(kernels().cast(*stream_, a.data(), DType::i32, wide.data(), DType::f32, Elements(4)),
               InternalError);
  EXPECT_THROW(kernels().cross_entropy_start(*stream_, {}, 3), InternalError);
  EXPECT_NO_THROW(stream_->synchronize());
}

HEADRACE_DEVICE_SUITE(KernelsTest);
HEADRACE_DEVICE_SUITE(CrossEntropyTest);

}  // namespace
}  // namespace headrace::device::testing
