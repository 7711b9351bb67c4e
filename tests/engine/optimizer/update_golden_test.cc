// The updates against PyTorch in fp32, with the data of tests/golden/make_adamw.py and
// tests/golden/make_optimizers.py.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/optimizer/update_arrays.h"

namespace headrace::engine {
namespace {

using nlohmann::json;
using testing::Arrays;
using testing::MasterKind;

constexpr double kUnit = 0x1p-24;

json read_golden(const char* name) {
  std::ifstream file(std::string(HEADRACE_SOURCE_DIR "/tests/golden/data/") + name);
  return file.is_open() ? json::parse(file) : json();
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

/// Takes all the steps of a case, with gradients as if the loss were scaled by 4 (exact), and calls
/// check(snapshot, options, arrays) at each of its snapshots.
template <class Check>
void replay(const json& golden, size_t number, UpdateOptions options, const Check& check) {
  const json& one = golden.at("cases").at(number);
  Arrays arrays({MasterKind::split, DType::f32, DType::f32, false}, golden.at("elements"));
  for (int64_t i = 0; i < arrays.count(); ++i) {
    arrays.set_master(i, one.at("start").at(static_cast<size_t>(i)).get<float>());
  }
  options.gradient_scale = 0.25F;
  size_t next = 0;
  for (options.step = 1; options.step <= golden.at("steps").get<int64_t>(); ++options.step) {
    for (int64_t i = 0; i < arrays.count(); ++i) {
      arrays.gradient().set_value(
          i, 4 * golden_gradient(static_cast<uint32_t>(number), static_cast<uint32_t>(options.step),
                                 static_cast<uint32_t>(i)));
    }
    ASSERT_TRUE(update(options, arrays.shard()).all_finite);
    const json& snapshots = one.at("snapshots");
    if (next < snapshots.size() && snapshots.at(next).at("step") == options.step) {
      SCOPED_TRACE(fmt::format("case {}, step {}", number, options.step));
      check(snapshots.at(next++), options, arrays);
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
  EXPECT_EQ(next, one.at("snapshots").size());
}

/// What rounding may add up to. Each step rounds the master, its decay and the update (below 10 lr)
/// a few times; the moments round relative to their terms. With decay in the gradient, the sum of
/// both rounds relative to the larger one, which may cancel.
void expect_near_adam(const json& golden, const json& start, const UpdateOptions& options,
                      Arrays& arrays) {
  const auto steps = static_cast<double>(options.step);
  for (int64_t i = 0; i < arrays.count(); ++i) {
    const auto at = static_cast<size_t>(i);
    const double p = golden.at("master").at(at).get<double>();
    const double m = golden.at("exp_avg").at(at).get<double>();
    const double v = golden.at("exp_avg_sq").at(at).get<double>();
    const double weight = std::max(std::abs(p), std::abs(start.at(at).get<double>()));
    const double decay = options.decoupled_weight_decay ? 0 : 2 * options.weight_decay * weight;
    const double root = std::sqrt(v);
    const double change = options.lr * (10 + decay / (root + options.eps));
    ASSERT_NEAR(arrays.master(i), p, kUnit * (2 + steps) * (weight + change)) << "master " << i;
    const double gradient = root * std::min(steps, 1 / (1 - options.beta2)) + decay;
    ASSERT_NEAR(arrays.moment1().value(i), m, kUnit * 4 * (std::abs(m) + gradient))
        << "exp_avg " << i;
    ASSERT_NEAR(arrays.moment2().value(i), v,
                kUnit * ((4 + 2 * std::sqrt(steps)) * v + 2 * root * decay))
        << "exp_avg_sq " << i;
  }
}

TEST(UpdateGolden, AdamFollowsPyTorchOver200Steps) {
  const json golden = read_golden("adamw.json");
  ASSERT_FALSE(golden.is_null()) << "no tests/golden/data/adamw.json";
  ASSERT_EQ(golden.at("cases").size(), 10U);
  for (size_t number = 0; number < golden.at("cases").size(); ++number) {
    const json& one = golden.at("cases").at(number);
    UpdateOptions options;
    options.lr = one.at("options").at("lr");
    options.beta1 = one.at("options").at("beta1");
    options.beta2 = one.at("options").at("beta2");
    options.eps = one.at("options").at("eps");
    options.weight_decay = one.at("options").at("weight_decay");
    options.decoupled_weight_decay = one.at("options").at("adam_w_mode");
    replay(golden, number, options, [&](const json& snapshot, const UpdateOptions& o, Arrays& a) {
      expect_near_adam(snapshot, one.at("start"), o, a);
    });
  }
}

UpdateOptions options_of(const json& j) {
  UpdateOptions options;
  const std::string kind = j.at("kind");
  options.kind = kind == "adagrad" ? OptimizerKind::adagrad
                 : kind == "lion"  ? OptimizerKind::lion
                                   : OptimizerKind::sgd;
  options.lr = j.at("lr");
  options.weight_decay = j.at("weight_decay");
  options.lr_decay = j.value("lr_decay", 0.0);
  options.eps = j.value("eps", 0.0);
  options.beta1 = j.value("beta1", 0.0);
  options.beta2 = j.value("beta2", 0.0);
  options.momentum = j.value("momentum", 0.0);
  options.dampening = j.value("dampening", 0.0);
  options.nesterov = j.value("nesterov", false);
  return options;
}

/// Per step both sides round the master and its decay, together at most four times relative to the
/// largest of their terms: the master, and its change. The change is at most lr times the largest
/// gradient with decay (1 + decay of the weight), over 1 - momentum with momentum; for Adagrad,
/// which divides by the root of the sum, and for Lion it is lr. Earlier errors go on through the
/// momentum and through the decay, neither of which enlarges them. A Lion direction of another sign
/// would show as 2 lr.
void expect_near(const json& golden, const json& start, const UpdateOptions& options,
                 Arrays& arrays) {
  const auto steps = static_cast<double>(options.step);
  const int moments = moment_count(options.kind, options.momentum);
  for (int64_t i = 0; i < arrays.count(); ++i) {
    const auto at = static_cast<size_t>(i);
    const double p = golden.at("master").at(at).get<double>();
    const double weight = std::max(std::abs(p), std::abs(start.at(at).get<double>()));
    const double gradient = 1 + options.weight_decay * weight;
    const double gain = options.kind == OptimizerKind::sgd ? gradient / (1 - options.momentum) : 1;
    ASSERT_NEAR(arrays.master(i), p, kUnit * 4 * steps * (weight + 4 * options.lr * gain))
        << "master " << i;
    if (moments > 0) {
      const double m = golden.at("moment").at(at).get<double>();
      // Adagrad adds up squares, so its relative error grows with the steps at most.
      const double scale = options.kind == OptimizerKind::adagrad ? steps * m + gradient : gain * 4;
      ASSERT_NEAR(arrays.moment1().value(i), m, kUnit * 2 * scale) << "moment " << i;
    }
  }
}

TEST(UpdateGolden, OthersFollowPyTorchOver300Steps) {
  const json golden = read_golden("optimizers.json");
  ASSERT_FALSE(golden.is_null()) << "no tests/golden/data/optimizers.json";
  ASSERT_EQ(golden.at("cases").size(), 12U);
  for (size_t number = 0; number < golden.at("cases").size(); ++number) {
    const json& one = golden.at("cases").at(number);
    SCOPED_TRACE(one.at("options").dump());
    replay(golden, number, options_of(one.at("options")),
           [&](const json& snapshot, const UpdateOptions& o, Arrays& a) {
             expect_near(snapshot, one.at("start"), o, a);
           });
  }
}

}  // namespace
}  // namespace headrace::engine
