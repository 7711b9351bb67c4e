// The statistics of the rounding of 8-bit moments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/engine/optimizer/quantized_arrays.h"

namespace headrace::engine {
namespace {

using testing::MasterKind;
using testing::Shard8;

constexpr int64_t kBlock = 64;

/// beta 0 makes the gradient the first moment and its square the second.
class RoundingStatistics : public ::testing::Test {
 protected:
  static constexpr int64_t kCount = kBlock * 2;
  static constexpr int kSteps = 6000;

  RoundingStatistics() : shard_({MasterKind::plain, DType::f32, DType::f32, false}, kCount) {
    options_.lr = 0;
    options_.beta1 = 0;
    options_.beta2 = 0;
    options_.bias_correction = false;
    options_.seed = 5;
    Random random(6, 0);
    for (int64_t i = 0; i < kCount; ++i) {
      gradient_.push_back(random.normal() * std::exp2(-12 * uniform_from(random.next_u32())));
    }
  }

  /// Calls see(element, first moment, second moment) after each of kSteps steps.
  template <class See>
  void run(const See& see) {
    for (options_.step = 1; options_.step <= kSteps; ++options_.step) {
      for (int64_t i = 0; i < kCount; ++i) {
        shard_.arrays.gradient().set_value(i, gradient_[static_cast<size_t>(i)]);
      }
      update(options_, shard_.shard());
      for (int64_t i = 0; i < kCount; ++i) {
        see(i,
            decode_moment(kSignedMoment, shard_.first.words[static_cast<size_t>(i)],
                          shard_.first.scales[static_cast<size_t>(i / kBlock)]),
            decode_moment(kSquareMoment, shard_.second.words[static_cast<size_t>(i)],
                          shard_.second.scales[static_cast<size_t>(i / kBlock)]));
      }
    }
  }

  UpdateOptions options_;
  Shard8 shard_;
  std::vector<float> gradient_;
};

/// Means over many steps, in units of their standard error; and the bound of a single error.
TEST_F(RoundingStatistics, IsUnbiasedAndBounded) {
  struct Sums {
    double error[2] = {};
    double squares[2] = {};
    double smallest_second = 1e30;
  };
  std::vector<Sums> sums(kCount);
  run([&](int64_t i, float first, float second) {
    const double g = gradient_[static_cast<size_t>(i)];
    const double exact[2] = {g, static_cast<float>(g) * static_cast<float>(g)};
    const double got[2] = {first, second};
    for (size_t k = 0; k < 2; ++k) {
      const double error = got[k] - exact[k];
      sums[static_cast<size_t>(i)].error[k] += error;
      sums[static_cast<size_t>(i)].squares[k] += error * error;
    }
    Sums& of = sums[static_cast<size_t>(i)];
    of.smallest_second = std::min(of.smallest_second, static_cast<double>(second));
  });
  double largest[2][2] = {};  // [moment][block]
  for (int64_t i = 0; i < kCount; ++i) {
    const auto g = std::abs(static_cast<double>(gradient_[static_cast<size_t>(i)]));
    largest[0][i / kBlock] = std::max(largest[0][i / kBlock], g);
    largest[1][i / kBlock] = std::max(largest[1][i / kBlock], g * g);
  }
  const double powers[2] = {0x1p-10, 0x1p-18};
  double worst = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const Sums& of = sums[static_cast<size_t>(i)];
    const double g = std::abs(static_cast<double>(gradient_[static_cast<size_t>(i)]));
    for (size_t k = 0; k < 2; ++k) {
      // The distance of neighbours: a sixteenth, or the step of the block.
      const double value = k == 0 ? g : g * g;
      const double distance = std::max(value / 16, 2 * powers[k] * largest[k][i / kBlock]);
      EXPECT_LE(std::sqrt(of.squares[k] / kSteps), distance);
      const double deviation = std::sqrt(of.squares[k] / kSteps) / std::sqrt(kSteps);
      const bool is_floor = k == 1 && of.smallest_second > value;  // below the smallest code
      if (deviation > 0 && !is_floor) {
        worst = std::max(worst, std::abs(of.error[k] / kSteps) / deviation);
      }
    }
    EXPECT_GT(of.smallest_second, 0);
  }
  EXPECT_LT(worst, 4.5);  // of 256 means; 4.5 deviations happen once in 300,000
  EXPECT_GT(worst, 1.5);
}

/// Neighbours, the two moments, and steps that follow each other are drawn independently.
TEST_F(RoundingStatistics, DrawsAreNotCorrelated) {
  std::vector<std::vector<double>> firsts(kCount);
  std::vector<std::vector<double>> seconds(kCount);
  run([&](int64_t i, float first, float second) {
    firsts[static_cast<size_t>(i)].push_back(first);
    seconds[static_cast<size_t>(i)].push_back(second);
  });
  for (auto* const all : {&firsts, &seconds}) {
    for (std::vector<double>& values : *all) {
      const double mean = std::accumulate(values.begin(), values.end(), 0.0) / kSteps;
      for (double& value : values) {
        value -= mean;
      }
    }
  }
  const auto correlation = [](const std::vector<double>& a, const std::vector<double>& b,
                              size_t lag) {
    double ab = 0;
    double aa = 0;
    double bb = 0;
    for (size_t i = lag; i < a.size(); ++i) {
      ab += a[i - lag] * b[i];
      aa += a[i - lag] * a[i - lag];
      bb += b[i] * b[i];
    }
    return aa * bb > 0 ? ab / std::sqrt(aa * bb) : 0;
  };
  const double limit = 4.5 / std::sqrt(kSteps);
  for (size_t i = 0; i + 1 < kCount; ++i) {
    EXPECT_LT(std::abs(correlation(firsts[i], firsts[i + 1], 0)), limit) << i;
    EXPECT_LT(std::abs(correlation(seconds[i], seconds[i + 1], 0)), limit) << i;
    EXPECT_LT(std::abs(correlation(firsts[i], seconds[i], 0)), limit) << i;
    EXPECT_LT(std::abs(correlation(firsts[i], firsts[i], 1)), limit) << i;
    EXPECT_LT(std::abs(correlation(seconds[i], seconds[i], 1)), limit) << i;
  }
}

}  // namespace
}  // namespace headrace::engine
