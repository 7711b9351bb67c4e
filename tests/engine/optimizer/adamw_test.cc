#include "engine/optimizer/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "tests/support/instruction_sets.h"

// clang-format off
#include "base/exact_float.h"
// clang-format on

namespace headrace::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The arrays of one shard, each starting `offset` elements after a 64-byte border.
class State {
 public:
  explicit State(int64_t count, int64_t offset = 0)
      : count_(static_cast<size_t>(count)),
        master_(count_ + 64),
        exp_avg_(count_ + 64),
        exp_avg_sq_(count_ + 64),
        gradient_(count_ + 64),
        weight_(count_ + 64, kUntouched),
        offset_(static_cast<size_t>(offset)) {}

  void fill(uint64_t seed) {
    Random random(seed, 0);
    for (size_t i = 0; i < count_; ++i) {
      master()[i] = random.normal();
      exp_avg()[i] = 0.1F * random.normal();
      exp_avg_sq()[i] = uniform_from(random.next_u32());
      gradient()[i] = random.normal();
    }
  }

  AdamWShard shard(DType dtype, bool with_weight) {
    AdamWShard s;
    s.master = master();
    s.exp_avg = exp_avg();
    s.exp_avg_sq = exp_avg_sq();
    s.gradient = gradient();
    s.weight = with_weight ? weight() : nullptr;
    s.weight_dtype = dtype;
    s.count = Elements(static_cast<int64_t>(count_));
    return s;
  }

  float* master() { return begin(master_); }
  float* exp_avg() { return begin(exp_avg_); }
  float* exp_avg_sq() { return begin(exp_avg_sq_); }
  float* gradient() { return begin(gradient_); }
  uint16_t* weight() { return begin(weight_); }
  size_t count() const { return count_; }

  /// Equal bits, any NaN equal to any other; and nothing written around the weights.
  void expect_equal(State& other, bool with_weight, const std::string& where) {
    for (size_t i = 0; i < count_; ++i) {
      ASSERT_TRUE(same(master()[i], other.master()[i])) << where << ", master " << i;
      ASSERT_TRUE(same(exp_avg()[i], other.exp_avg()[i])) << where << ", exp_avg " << i;
      ASSERT_TRUE(same(exp_avg_sq()[i], other.exp_avg_sq()[i])) << where << ", exp_avg_sq " << i;
      if (with_weight && !std::isnan(master()[i])) {
        ASSERT_EQ(weight()[i], other.weight()[i]) << where << ", weight " << i;
      }
    }
    const auto first = static_cast<size_t>(weight() - weight_.data());
    for (size_t i = 0; i < weight_.size(); ++i) {
      if (!with_weight || i < first || i >= first + count_) {
        ASSERT_EQ(weight_[i], kUntouched) << where << ", " << i;
      }
    }
  }

 private:
  static constexpr uint16_t kUntouched = 0x5a5a;

  static bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
           (std::isnan(a) && std::isnan(b));
  }
  template <class T>
  T* begin(std::vector<T>& v) {
    const size_t address = reinterpret_cast<size_t>(v.data());
    return v.data() + (64 - address % 64) % 64 / sizeof(T) + offset_;
  }

  size_t count_;
  std::vector<float> master_;
  std::vector<float> exp_avg_;
  std::vector<float> exp_avg_sq_;
  std::vector<float> gradient_;
  std::vector<uint16_t> weight_;
  size_t offset_;
};

/// The update written down once more, element by element.
void update_by_scalars(const AdamWOptions& o, State& s, DType dtype, bool with_weight) {
  const auto step = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1 - std::pow(o.beta1, step) : 1;
  const double correction2 = o.bias_correction ? 1 - std::pow(o.beta2, step) : 1;
  for (size_t i = 0; i < s.count(); ++i) {
    float p = s.master()[i];
    float g = s.gradient()[i] * o.gradient_scale;
    if (o.adam_w_mode) {
      p = p * static_cast<float>(1 - o.lr * o.weight_decay);
    } else if (o.weight_decay != 0) {
      g = g + p * static_cast<float>(o.weight_decay);
    }
    const float m =
        s.exp_avg()[i] * static_cast<float>(o.beta1) + g * static_cast<float>(1 - o.beta1);
    const float v =
        s.exp_avg_sq()[i] * static_cast<float>(o.beta2) + g * static_cast<float>(1 - o.beta2) * g;
    const float denominator =
        std::sqrt(v) * static_cast<float>(1 / std::sqrt(correction2)) + static_cast<float>(o.eps);
    p = p - m * static_cast<float>(o.lr / correction1) / denominator;
    s.master()[i] = p;
    s.exp_avg()[i] = m;
    s.exp_avg_sq()[i] = v;
    if (with_weight) {
      s.weight()[i] = dtype == DType::bf16 ? to_bf16(p).bits : to_f16(p).bits;
    }
  }
}

std::vector<AdamWOptions> option_mix() {
  AdamWOptions plain;
  AdamWOptions decay;
  decay.weight_decay = 0.1;
  decay.lr = 0.02;
  decay.step = 7;
  decay.gradient_scale = 0.37F;
  AdamWOptions l2 = decay;
  l2.adam_w_mode = false;
  AdamWOptions uncorrected = decay;
  uncorrected.bias_correction = false;
  uncorrected.beta1 = 0;
  uncorrected.beta2 = 0.5;
  return {plain, decay, l2, uncorrected};
}

struct Output {
  DType dtype;
  bool with_weight;
};
constexpr Output kOutputs[] = {{DType::bf16, true}, {DType::f16, true}, {DType::bf16, false}};

TEST(AdamW, EqualsTheScalarUpdateOnEveryInstructionSet) {
  for (const int64_t set : testing::instruction_sets()) {
    const testing::ForcedInstructionSet forced(set);
    for (const AdamWOptions& options : option_mix()) {
      for (const Output output : kOutputs) {
        for (const int64_t count : {1, 2, 15, 16, 17, 33, 1000}) {
          for (const int64_t offset : {0, 1, 8, 13}) {
            State got(count, offset);
            State expected(count);
            got.fill(3);
            expected.fill(3);
            adamw_update(options, got.shard(output.dtype, output.with_weight));
            update_by_scalars(options, expected, output.dtype, output.with_weight);
            got.expect_equal(expected, output.with_weight,
                             std::string(hwy::TargetName(set)) + " " + std::to_string(count));
          }
        }
      }
    }
  }
}

TEST(AdamW, SameBitsForAnyThreadCountAndSplit) {
  constexpr int64_t kCount = 300'001;  // several blocks
  const AdamWOptions options = option_mix()[1];
  State expected(kCount);
  expected.fill(5);
  update_by_scalars(options, expected, DType::bf16, true);
  for (const int threads : {1, 2, 3}) {
    const testing::ForcedThreads limited(threads);
    State whole(kCount);
    whole.fill(5);
    adamw_update(options, whole.shard(DType::bf16, true));
    whole.expect_equal(expected, true, "whole");

    State pieces(kCount);
    pieces.fill(5);
    for (int64_t begin = 0; begin < kCount;) {
      const int64_t count = std::min<int64_t>(kCount - begin, begin % 70'000 + 4099);
      AdamWShard piece = pieces.shard(DType::bf16, true);
      piece.master += begin;
      piece.exp_avg += begin;
      piece.exp_avg_sq += begin;
      piece.gradient += begin;
      piece.weight = static_cast<uint16_t*>(piece.weight) + begin;
      piece.count = Elements(count);
      adamw_update(options, piece);
      begin += count;
    }
    pieces.expect_equal(expected, true, "pieces");
  }
}

TEST(AdamW, SpecialValues) {
  const float values[] = {0.0F,   -0.0F,   kInfinity, -kInfinity, kNan,     1e-45F, -1e-40F,
                          1e-38F, 3.4e38F, -3.4e38F,  65504.0F,   65520.0F, 6e-8F,  1.0F};
  const size_t kinds = std::size(values);
  for (const int64_t set : testing::instruction_sets()) {
    const testing::ForcedInstructionSet forced(set);
    for (const AdamWOptions& options : option_mix()) {
      for (const Output output : kOutputs) {
        State got(static_cast<int64_t>(kinds * kinds));
        State expected(static_cast<int64_t>(kinds * kinds));
        for (State* s : {&got, &expected}) {
          s->fill(8);
          for (size_t i = 0; i < kinds * kinds; ++i) {
            s->master()[i] = values[i % kinds];
            s->gradient()[i] = values[i / kinds];
          }
        }
        adamw_update(options, got.shard(output.dtype, output.with_weight));
        update_by_scalars(options, expected, output.dtype, output.with_weight);
        got.expect_equal(expected, output.with_weight, hwy::TargetName(set));
        for (size_t i = 0; output.with_weight && i < kinds * kinds; ++i) {
          if (!std::isnan(got.master()[i])) {
            continue;
          }
          const float weight = output.dtype == DType::bf16 ? to_float(Bf16{got.weight()[i]})
                                                           : to_float(F16{got.weight()[i]});
          ASSERT_TRUE(std::isnan(weight)) << i;
        }
      }
    }
  }
}

TEST(AdamW, RoundsWeightsAsTheBaseConversions) {
  // lr 0 leaves the master as it is, so that any bit pattern can be sent through the rounding.
  AdamWOptions options;
  options.lr = 0;
  for (const int64_t set : testing::instruction_sets()) {
    const testing::ForcedInstructionSet forced(set);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      State s(1 << 16);
      s.fill(1);
      for (size_t i = 0; i < s.count(); ++i) {
        s.master()[i] = std::bit_cast<float>(static_cast<uint32_t>(i * 65537));
      }
      adamw_update(options, s.shard(dtype, true));
      for (size_t i = 0; i < s.count(); ++i) {
        const auto value = std::bit_cast<float>(static_cast<uint32_t>(i * 65537));
        if (std::isnan(value)) {
          continue;
        }
        ASSERT_EQ(s.weight()[i], dtype == DType::bf16 ? to_bf16(value).bits : to_f16(value).bits)
            << i << " " << hwy::TargetName(set);
      }
    }
  }
}

/// The generator of tests/golden/make_adamw.py.
float golden_gradient(uint32_t number, uint32_t step, uint32_t i) {
  uint32_t word = number * 1000003U + step * 7919U + i * 104729U + 12345U;
  word = word * 1664525U + 1013904223U;
  word ^= word >> 16;
  word *= 0x85EBCA6BU;
  word ^= word >> 13;
  const auto centred = static_cast<float>(static_cast<int32_t>(word >> 8) - (1 << 23));
  return std::ldexp(centred, -23 - static_cast<int>(i % 13));
}

/// Compares with what rounding may add up to. Each step rounds the master, its decay and the update
/// (below 10 lr) a few times; the moments round relative to their terms. With decay in the
/// gradient, the sum of both rounds relative to the larger one, which may cancel.
void expect_near_golden(const nlohmann::json& golden, const nlohmann::json& start,
                        const AdamWOptions& options, State& s) {
  constexpr double kUnit = 0x1p-24;
  const auto steps = static_cast<double>(options.step);
  for (size_t i = 0; i < s.count(); ++i) {
    const double p = golden.at("master").at(i).get<double>();
    const double m = golden.at("exp_avg").at(i).get<double>();
    const double v = golden.at("exp_avg_sq").at(i).get<double>();
    const double weight = std::max(std::abs(p), std::abs(start.at(i).get<double>()));
    const double decay = options.adam_w_mode ? 0 : 2 * options.weight_decay * weight;
    const double root = std::sqrt(v);
    const double update = options.lr * (10 + decay / (root + options.eps));
    ASSERT_NEAR(s.master()[i], p, kUnit * (2 + steps) * (weight + update)) << "master " << i;
    const double gradient = root * std::min(steps, 1 / (1 - options.beta2)) + decay;
    ASSERT_NEAR(s.exp_avg()[i], m, kUnit * 4 * (std::abs(m) + gradient)) << "exp_avg " << i;
    ASSERT_NEAR(s.exp_avg_sq()[i], v, kUnit * ((4 + 2 * std::sqrt(steps)) * v + 2 * root * decay))
        << "exp_avg_sq " << i;
  }
}

TEST(AdamW, FollowsPyTorchOver200Steps) {
  std::ifstream file(HEADRACE_SOURCE_DIR "/tests/golden/data/adamw.json");
  ASSERT_TRUE(file.is_open());
  const nlohmann::json golden = nlohmann::json::parse(file);
  const auto elements = golden.at("elements").get<int64_t>();
  const auto steps = golden.at("steps").get<int64_t>();
  ASSERT_EQ(golden.at("cases").size(), 10U);
  for (size_t number = 0; number < golden.at("cases").size(); ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    const nlohmann::json& one = golden.at("cases").at(number);
    AdamWOptions options;
    options.lr = one.at("options").at("lr");
    options.beta1 = one.at("options").at("beta1");
    options.beta2 = one.at("options").at("beta2");
    options.eps = one.at("options").at("eps");
    options.weight_decay = one.at("options").at("weight_decay");
    options.adam_w_mode = one.at("options").at("adam_w_mode");
    State s(elements);
    for (size_t i = 0; i < s.count(); ++i) {
      s.master()[i] = one.at("start").at(i);
    }
    size_t next = 0;
    for (int64_t step = 1; step <= steps; ++step) {
      options.step = step;
      options.gradient_scale = 0.25F;  // as if the loss were scaled by 4: exact
      for (size_t i = 0; i < s.count(); ++i) {
        s.gradient()[i] =
            4 * golden_gradient(static_cast<uint32_t>(number), static_cast<uint32_t>(step),
                                static_cast<uint32_t>(i));
      }
      adamw_update(options, s.shard(DType::bf16, true));
      const nlohmann::json& snapshots = one.at("snapshots");
      if (next < snapshots.size() && snapshots.at(next).at("step") == step) {
        SCOPED_TRACE("step " + std::to_string(step));
        expect_near_golden(snapshots.at(next++), one.at("start"), options, s);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
    EXPECT_EQ(next, one.at("snapshots").size());
  }
}

TEST(AdamW, BrokenPreconditionsAreInternalErrors) {
  State s(4);
  AdamWOptions options;
  options.step = 0;
  EXPECT_THROW(adamw_update(options, s.shard(DType::bf16, true)), InternalError);
  options.step = 1;
  EXPECT_THROW(adamw_update(options, s.shard(DType::f32, true)), InternalError);
  AdamWShard shard = s.shard(DType::bf16, true);
  shard.gradient = nullptr;
  EXPECT_THROW(adamw_update(options, shard), InternalError);
  EXPECT_NO_THROW(adamw_update(options, AdamWShard{}));  // nothing to do
}

}  // namespace
}  // namespace headrace::engine
