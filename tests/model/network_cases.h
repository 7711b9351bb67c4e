#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/model/network_harness.h"

namespace headrace::model {

inline constexpr float kUnscaled = 1;

/// A small network with every optional part at once, which no single family has.
inline ModelConfig everything_config() {
  ModelConfig config;
  config.family = Family::qwen3;
  config.vocab_size = 37;
  config.hidden_size = 20;
  config.intermediate_size = 28;
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 10;
  config.max_positions = 64;
  config.rope_scaling = {RopeScaling::Kind::llama3, 4, 1, 4, 8};
  config.attention_bias = config.output_bias = config.mlp_bias = config.qk_norm = true;
  return config;
}

inline std::vector<float> random_values(const ParameterSpec& parameter, uint64_t stream) {
  Random random(7, stream + std::hash<std::string>()(parameter.name));
  std::vector<float> values(static_cast<size_t>(parameter.count.count()));
  const bool is_norm = parameter.name.ends_with("norm.weight");
  for (float& value : values) {
    value = (is_norm ? 1.0F : 0.0F) + 0.2F * random.normal();
  }
  return values;
}

/// Random tokens with the labels at the given positions ignored.
inline void set_random_batch(NetworkHarness& harness, const std::vector<size_t>& ignored = {}) {
  Random random(11, 0);
  const auto tokens = static_cast<size_t>(harness.network().shape().tokens());
  const auto vocab = static_cast<uint64_t>(harness.network().config().vocab_size);
  std::vector<int32_t> ids(tokens);
  std::vector<int32_t> labels(tokens);
  for (size_t i = 0; i < tokens; ++i) {
    ids[i] = static_cast<int32_t>(random.below(vocab));
    labels[i] = static_cast<int32_t>(random.below(vocab));
  }
  for (const size_t position : ignored) {
    labels[position] = -100;
  }
  const auto seq = harness.network().shape().seq;
  const int32_t none = -1;  // ends a document
  harness.set_batch(ids, labels, find_documents(ids, seq, none));
}

inline void prepare(NetworkHarness& harness, const std::vector<size_t>& ignored = {}) {
  harness.set_weights([](const ParameterSpec& parameter) { return random_values(parameter, 0); });
  set_random_batch(harness, ignored);
}

inline double largest(const std::vector<float>& values) {
  double result = 0;
  for (const float value : values) {
    result = std::max(result, std::abs(double{value}));
  }
  return result;
}

/// Largest difference relative to the largest reference value.
inline double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double here = std::abs(double{actual[i]} - double{expected[i]});
    difference = std::isnan(here) ? INFINITY : std::max(difference, here);
  }
  return difference / largest(expected);
}

/// sqrt(|actual - expected|^2 / |expected|^2)
inline double relative_distance(const std::vector<float>& actual,
                                const std::vector<float>& expected) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

inline void expect_same_bits(const NamedValues& a, const NamedValues& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    EXPECT_EQ(values, b.at(name)) << name;
  }
}

}  // namespace headrace::model
