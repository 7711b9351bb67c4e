#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/cpu/row_kernels.h"
#include "tests/device/row_kernels_testing.h"

namespace headrace::device {
namespace {

constexpr int32_t kIgnored = -100;

/// Cross-entropy of [tokens, vocabulary] logits, folded in tiles.
class LossRun {
 public:
  LossRun(int64_t tokens, int64_t vocabulary, int64_t tile, float scale, Layout layout = {})
      : logits(DType::f32, tokens, vocabulary, layout),
        labels(static_cast<size_t>(tokens)),
        tile_(tile),
        max_(static_cast<size_t>(tokens)),
        sum_(max_),
        target_(max_) {
    logits.fill_random(1, scale);
    Random random(2, 0);
    for (int32_t& label : labels) {
      label = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary)));
    }
    for (size_t t = 1; t < labels.size(); t += 3) {
      labels[t] = kIgnored;
    }
  }

  double forward() {
    cpu::cross_entropy_start(state(), logits.rows());
    for (int64_t first = 0; first < logits.columns(); first += tile_) {
      cpu::cross_entropy_tile(part(logits, first), first, labels.data(), state());
    }
    double loss = -1;
    cpu::cross_entropy_loss(state(), labels.data(), logits.rows(), &loss);
    return loss;
  }
  TestMatrix backward(DType dtype, float scale, Layout layout = {}) {
    TestMatrix dlogits(dtype, logits.rows(), logits.columns(), layout);
    dlogits.fill_random(5);
    for (int64_t first = 0; first < logits.columns(); first += tile_) {
      cpu::cross_entropy_gradient(part(logits, first), first, labels.data(), state(), scale,
                                  part(dlogits, first));
    }
    return dlogits;
  }

  /// The loss of one token in double.
  double exact_loss(int64_t token, int64_t moved = -1, double delta = 0) const {
    const auto value = [&](int64_t c) { return logits.get(token, c) + (c == moved ? delta : 0.0); };
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < logits.columns(); ++c) {
      max = std::max(max, value(c));
    }
    double sum = 0;
    for (int64_t c = 0; c < logits.columns(); ++c) {
      sum += std::exp(value(c) - max);
    }
    return max + std::log(sum) - value(labels[static_cast<size_t>(token)]);
  }

  TestMatrix logits;
  std::vector<int32_t> labels;

 private:
  CrossEntropyState state() { return {max_.data(), sum_.data(), target_.data()}; }
  Matrix part(TestMatrix& whole, int64_t first) const {
    Matrix m = whole.matrix();
    m.data = static_cast<std::byte*>(m.data) + first * size_of(m.dtype).count();
    m.columns = std::min(tile_, whole.columns() - first);
    return m;
  }

  int64_t tile_;
  std::vector<float> max_;
  std::vector<float> sum_;
  std::vector<float> target_;
};

TEST(RowKernels, CrossEntropyLossMatchesDouble) {
  for (const int64_t tile : {1, 7, 64, 100, 1000}) {
    for (const float scale : {0.1F, 5.0F, 60.0F}) {
      LossRun run(17, 333, tile, scale);
      double exact = 0;
      for (int64_t t = 0; t < 17; ++t) {
        if (run.labels[static_cast<size_t>(t)] != kIgnored) {
          exact += run.exact_loss(t);
        }
      }
      // Each token: the rounding of the logits' differences and of log(sum).
      EXPECT_NEAR(run.forward(), exact, 17 * (1e-6 + 4 * 0x1p-24 * static_cast<double>(scale)));
    }
  }
}

TEST(RowKernels, CrossEntropyGradientMatchesFiniteDifferences) {
  for (const DType dtype : kFloatTypes) {
    LossRun run(7, 131, 50, 3.0F, {3, 1});
    run.forward();
    constexpr float kScale = 0.5F;
    const TestMatrix dlogits = run.backward(dtype, kScale, {2, 1});
    for (int64_t t = 0; t < 7; ++t) {
      for (int64_t c = 0; c < 131; ++c) {
        if (run.labels[static_cast<size_t>(t)] == kIgnored) {
          ASSERT_EQ(dlogits.get(t, c), 0.0F);
          continue;
        }
        constexpr double kStep = 1e-4;
        const double slope = (run.exact_loss(t, c, kStep) - run.exact_loss(t, c, -kStep)) /
                             (2 * kStep) * static_cast<double>(kScale);
        ASSERT_NEAR(dlogits.get(t, c), slope, unit_roundoff(dtype) * std::abs(slope) + 1e-6)
            << t << ", " << c;
      }
    }
    dlogits.expect_padding_untouched();
  }
}

TEST(RowKernels, CrossEntropyOfExtremeLogits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  LossRun run(4, 40, 16, 1.0F);
  run.labels = {3, 0, 5, 7};
  for (int64_t c = 0; c < 20; ++c) {
    run.logits.set(0, c, -kInfinity);
  }  // first tile all -inf
  run.logits.set(0, 3, 1.0F);
  run.logits.set(1, 0, 3e38F);  // everything else vanishes beside it
  run.logits.set(3, 9, -kInfinity);
  const double loss = run.forward();
  EXPECT_TRUE(std::isfinite(loss));
  EXPECT_NEAR(loss, run.exact_loss(0) + run.exact_loss(1) + run.exact_loss(2) + run.exact_loss(3),
              1e-5);
  const TestMatrix gradient = run.backward(DType::f32, 1.0F);
  EXPECT_EQ(gradient.get(0, 0), 0.0F);
  EXPECT_EQ(gradient.get(1, 0), 0.0F);
  EXPECT_EQ(gradient.get(3, 9), 0.0F);

  run.logits.set(2, 38, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(run.forward()));
}

TEST(RowKernels, CrossEntropyOfLeadingMinusInfinityTiles) {
  LossRun run(1, 48, 16, 1.0F);
  run.labels = {40};
  for (int64_t c = 0; c < 32; ++c) {
    run.logits.set(0, c, -std::numeric_limits<float>::infinity());
  }
  EXPECT_NEAR(run.forward(), run.exact_loss(0), 1e-6);
}

TEST(RowKernels, CrossEntropyOfIgnoredTokensIsZero) {
  LossRun run(5, 20, 6, 1.0F);
  for (int32_t& label : run.labels) {
    label = kIgnored;
  }
  EXPECT_EQ(run.forward(), 0.0);
}

TEST(RowKernels, CrossEntropyGivesTheSameBitsEverywhere) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits([&](Layout layout) {
      LossRun run(90, 1003, 400, 4.0F, layout);
      const double loss = run.forward();
      std::vector<std::byte> bytes(sizeof(double));
      std::memcpy(bytes.data(), &loss, sizeof(double));
      append(bytes, run.backward(dtype, 0.01F, layout).elements());
      return bytes;
    });
  }
}

}  // namespace
}  // namespace headrace::device
