#include "tests/device/kernels_suite.h"

namespace headrace::device::testing {
namespace {

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

HEADRACE_DEVICE_SUITE(CrossEntropyTest);

}  // namespace
}  // namespace headrace::device::testing
