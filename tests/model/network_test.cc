#include "model/network.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/model/network_cases.h"
#include "tests/model/network_harness.h"
#include "tests/model/network_parity.h"

namespace headrace::model {
namespace {

TEST_P(NetworkParity, LossAndGradientsInFp32) {
  compare(DType::f32);
}
TEST_P(NetworkParity, LossAndGradientsInBf16) {
  compare(DType::bf16);
}
TEST_P(NetworkParity, LossAndGradientsInF16) {
  compare(DType::f16);
}

/// Blocks in tiles add in another order, to no lesser precision.
TEST_P(NetworkParity, CutBlocksGiveTheSameLossAndGradients) {
  for (const BlockCut& cut : {BlockCut{1, kGoldenPiece}, BlockCut{2, 2 * kGoldenPiece}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      compare(dtype, cut);
    }
  }
}

TEST_P(NetworkParity, EveryParameterHasAGradient) {
  const auto harness = make_harness(DType::f32, {});
  NamedValues gradients;
  harness->loss_and_gradients(kUnscaled, gradients);
  EXPECT_EQ(gradients.size(), reader_.tensors().size());
}

TEST_P(NetworkParity, BitsDoNotDependOnTheRecomputeLevel) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    NamedValues expected;
    const double expected_loss = make_harness(dtype, {})->loss_and_gradients(kUnscaled, expected);
    for (const Recompute level : {Recompute::none, Recompute::mlp}) {
      NamedValues gradients;
      const auto harness = make_harness(dtype, {.recompute = level});
      EXPECT_EQ(harness->loss_and_gradients(kUnscaled, gradients), expected_loss);
      expect_same_bits(gradients, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, NetworkParity,
                         testing::Values("llama_llama3", "llama_linear", "mistral", "qwen2",
                                         "qwen3"),
                         [](const auto& instance) { return std::string(instance.param); });

/// (loss(w + step d) - loss(w - step d)) / (2 step) against gradient . d for one random direction
/// per parameter.
TEST(Network, GradientsMatchFiniteDifferences) {
  NetworkHarness harness(everything_config(), DType::f32, {2, 9}, {.vocab_tile = 10});
  prepare(harness, {4});
  NamedValues gradients;
  harness.loss_and_gradients(kUnscaled, gradients);
  for (const auto& of_parameter : gradients) {  // clang 14 captures no structured bindings
    const std::string& name = of_parameter.first;
    const std::vector<float>& gradient = of_parameter.second;
    constexpr double kStep = 2e-3;
    std::vector<float> direction(gradient.size());
    Random random(23, std::hash<std::string>()(name));
    double expected = 0;
    double scale = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] = random.normal() + (gradient[i] > 0 ? 1.0F : -1.0F);  // no cancellation
      expected += double{direction[i]} * double{gradient[i]};
      scale += double{direction[i]} * double{direction[i]};
    }
    const double step = kStep / std::sqrt(scale / static_cast<double>(direction.size()));
    const auto loss_at = [&](double distance) {
      harness.set_weights([&](const ParameterSpec& parameter) {
        std::vector<float> values = random_values(parameter, 0);
        for (size_t i = 0; parameter.name == name && i < values.size(); ++i) {
          values[i] += static_cast<float>(distance * direction[i]);
        }
        return values;
      });
      return harness.loss();
    };
    const double measured = (loss_at(step) - loss_at(-step)) / (2 * step);
    EXPECT_NEAR(measured, expected, 0.01 * std::abs(expected) + 0.02) << name;
  }
}

TEST(Network, BitsOfEveryOptionalPartDoNotDependOnTheRecomputeLevel) {
  for (const bool din_is_dout : {true, false}) {
    NamedValues reference;
    for (const Recompute level : {Recompute::block, Recompute::mlp, Recompute::none}) {
      NetworkHarness harness(everything_config(), DType::bf16, {2, 9},
                             {.din_is_dout = din_is_dout, .recompute = level});
      prepare(harness);
      NamedValues gradients;
      harness.loss_and_gradients(kUnscaled, gradients);
      if (reference.empty()) {
        reference = gradients;
      }
      expect_same_bits(gradients, reference);
    }
  }
}

TEST(Network, SavesWhatTheLevelDoesNotComputeAgain) {
  const auto device = device::make_cpu_device();
  ModelConfig config = everything_config();
  const auto padded = [](int64_t bytes) { return Bytes((bytes + 63) / 64 * 64); };
  const int64_t tokens = 18;
  for (const bool qk_norm : {true, false}) {
    config.qk_norm = qk_norm;
    const Network network(config, DType::bf16, {2, 9}, *device);
    // q, out and k, v, once more before the norms, their 1/rms; log-sum-exp; the residual stream.
    Bytes attention = padded(tokens * 60 * 2) * 2 + padded(tokens * 20 * 2) * 3;
    attention += padded(tokens * 6 * 4);
    if (qk_norm) {
      attention += padded(tokens * 60 * 2) + padded(tokens * 20 * 2) + padded(tokens * 6 * 4) +
                   padded(tokens * 2 * 4);
    }
    EXPECT_EQ(network.saved_bytes(Recompute::block), Bytes(0));
    EXPECT_EQ(network.saved_bytes(Recompute::mlp), attention);
    EXPECT_EQ(network.saved_bytes(Recompute::none), attention + padded(tokens * 28 * 2) * 2);
  }
}

TEST(Network, SavedValuesNeedMemory) {
  const auto device = device::make_cpu_device();
  Network network(everything_config(), DType::bf16, {1, 8}, *device);
  const auto memory = device->allocate(network.block_forward_workspace());
  const auto stream = device->create_stream("test");
  for (const SavedValues saved :
       {SavedValues{Recompute::none, nullptr}, SavedValues{Recompute::block, memory->data()}}) {
    EXPECT_THROW(network.block_forward(*stream, nullptr, nullptr, nullptr, saved,
                                       {memory->data(), memory->size()}),
                 InternalError);
  }
}

TEST(Network, BitsDoNotDependOnAddressesAliasingOrThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    NamedValues reference;
    double reference_loss = 0;
    for (const NetworkHarness::Options& options :
         {NetworkHarness::Options{16, 0, true}, NetworkHarness::Options{16, 64, true},
          NetworkHarness::Options{16, 1984, false}, NetworkHarness::Options{16, 64, true, 2}}) {
      NetworkHarness harness(everything_config(), dtype, {2, 9}, options);
      prepare(harness);
      NamedValues gradients;
      const double loss = harness.loss_and_gradients(kUnscaled, gradients);
      if (reference.empty()) {
        reference = gradients;
        reference_loss = loss;
      }
      EXPECT_EQ(loss, reference_loss);
      expect_same_bits(gradients, reference);
    }
  }
}

TEST(Network, VocabularyTileOnlyChangesTheOrderOfSums) {
  NetworkHarness whole(everything_config(), DType::f32, {2, 9});
  prepare(whole);
  NamedValues expected;
  const double expected_loss = whole.loss_and_gradients(kUnscaled, expected);
  for (const int64_t tile : {1, 7, 36, 37}) {
    NetworkHarness tiled(everything_config(), DType::f32, {2, 9}, {.vocab_tile = tile});
    prepare(tiled);
    NamedValues gradients;
    EXPECT_NEAR(tiled.loss_and_gradients(kUnscaled, gradients), expected_loss,
                1e-5 * expected_loss);
    for (const auto& [name, values] : gradients) {
      EXPECT_LE(relative_error(values, expected.at(name)), 2e-5) << name << " tile " << tile;
    }
  }
}

/// Head and embedding in parts, as modules of their own, do the same sums in the same order.
TEST(Network, CuttingTheVocabularyChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool tied : {false, true}) {
      ModelConfig config = everything_config();
      config.tie_word_embeddings = tied;
      NamedValues expected;
      double expected_loss = 0;
      for (const int64_t rows : {0, 5, 10, 35}) {
        NetworkHarness harness(config, dtype, {2, 9}, {.vocab_tile = 5, .tile_rows = rows});
        EXPECT_EQ(harness.modules().front().name, rows == 0 ? "embed" : "embed.0");
        prepare(harness, {4});
        NamedValues gradients;
        const double loss = harness.loss_and_gradients(3, gradients);
        EXPECT_EQ(harness.loss(), loss);
        if (rows == 0) {
          expected = gradients;
          expected_loss = loss;
        }
        EXPECT_EQ(loss, expected_loss);
        expect_same_bits(gradients, expected);
      }
    }
  }
}

TEST(Network, RefusesPartsThatCutALogitsTile) {
  const auto device = device::make_cpu_device();
  Network network(everything_config(), DType::f32, {1, 8}, *device, 10);
  const auto memory = device->allocate(network.head_tile_workspace());
  const auto stream = device->create_stream("test");
  for (const VocabularyRange rows : {VocabularyRange{5, 10}, VocabularyRange{0, 15}}) {
    EXPECT_THROW(network.head_fold(*stream, {.rows = rows}, nullptr,
                                   {memory->data(), network.head_tile_workspace()}),
                 InternalError);
  }
}

TEST(Network, GradientScaleScales) {
  NetworkHarness harness(everything_config(), DType::f32, {1, 9});
  prepare(harness);
  NamedValues once;
  NamedValues scaled;
  const double loss = harness.loss_and_gradients(1, once);
  EXPECT_EQ(harness.loss_and_gradients(1024, scaled), loss);
  for (auto& [name, values] : once) {
    for (float& value : values) {
      value *= 1024;
    }  // a power of two: exact
  }
  expect_same_bits(scaled, once);
}

TEST(Network, NothingCountedGivesZero) {
  NetworkHarness harness(everything_config(), DType::f32, {1, 3});
  prepare(harness, {0, 1, 2});
  NamedValues gradients;
  EXPECT_EQ(harness.loss_and_gradients(1, gradients), 0.0);
  for (const auto& [name, values] : gradients) {
    EXPECT_EQ(largest(values), 0.0) << name;
  }
}

TEST(Network, EarlierPositionsDoNotSeeLaterTokens) {
  // Only position 2 counts: its loss is that of the sequence cut behind it.
  const ModelConfig config = everything_config();
  NetworkHarness whole(config, DType::f32, {1, 6});
  NetworkHarness cut(config, DType::f32, {1, 3});
  prepare(whole);
  prepare(cut);
  whole.set_batch({1, 2, 3, 4, 5, 6}, {-100, -100, 9, -100, -100, -100});
  cut.set_batch({1, 2, 3}, {-100, -100, 9});
  EXPECT_NEAR(whole.loss(), cut.loss(), 1e-5);
}

TEST(Network, SmallerWorkspaceIsRefused) {
  const auto device = device::make_cpu_device();
  Network network(everything_config(), DType::bf16, {1, 8}, *device);
  const Bytes needed = network.block_backward_workspace();
  const auto memory = device->allocate(needed);
  const auto stream = device->create_stream("test");
  const auto run_in = [&](device::Workspace workspace) {
    network.block_backward(*stream, nullptr, nullptr, nullptr, nullptr, nullptr, {}, workspace);
  };
  EXPECT_THROW(run_in({memory->data(), needed - Bytes(1)}), InternalError);
  EXPECT_THROW(run_in({memory->data() + 8, needed}), InternalError);  // not aligned
}

TEST(Network, RefusesSequencesThatCannotBeTrained) {
  const auto device = device::make_cpu_device();
  ModelConfig config = everything_config();
  EXPECT_THROW(Network(config, DType::f32, {1, 65}, *device), InputError);
}

TEST(Network, CountsFloatingPointOperations) {
  const auto device = device::make_cpu_device();
  const ModelConfig config = everything_config();
  const Network network(config, DType::f32, {2, 8}, *device, 10);
  const double tokens = 16;
  const double projections = 20 * 60 + 2 * 20 * 20 + 60 * 20;  // q, k and v, o
  const double mlp = 3 * 20 * 28;
  const double pairs = 2 * (8 * 9 / 2);  // causal (query, key) pairs per head
  const double linear = 2 * tokens * (projections + mlp);
  const double attention = 2 * 2 * pairs * 6 * 10;
  EXPECT_DOUBLE_EQ(network.block_forward_flops().total(), linear + attention);
  const double down = 2 * tokens * 20 * 28;
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::block).total(),
                   3 * linear - down + 3.5 * attention);
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::mlp).total(),
                   2 * linear + 2 * down + 2.5 * attention);
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::none).total(),
                   2 * linear + 2.5 * attention);
  // Outputs of linear layers, for the first time or again.
  EXPECT_DOUBLE_EQ(network.block_forward_flops().linear_forward, linear);
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::block).linear_forward, linear - down);
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::mlp).linear_forward, 2 * down);
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::none).linear_forward, 0);
  const double weights = projections + mlp;
  EXPECT_DOUBLE_EQ(network.block_forward_flops().rounded, tokens * (20 + 60 + 20 + 28) + weights);
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::block).rounded,
                   tokens * (20 + 60 + 20) + weights - 20 * 28);
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::mlp).rounded, tokens * 20 + 2 * 20 * 28);
  EXPECT_DOUBLE_EQ(network.block_backward_flops(Recompute::none).rounded, 0);
  ModelConfig windowed = config;
  windowed.sliding_window = 3;
  const double seen = 2 * (1 + 2 + 6 * 3);
  EXPECT_DOUBLE_EQ(
      Network(windowed, DType::f32, {2, 8}, *device).block_forward_flops().total() - linear,
      attention / pairs * seen);
  // 37 = 3 tiles of 10 computed twice and a last one of 7.
  EXPECT_DOUBLE_EQ(network.head_flops(), 2 * tokens * 20 * (3 * 37 + 30));
}

TEST(Network, WorkspaceOfTheHeadDoesNotGrowWithTheVocabulary) {
  const auto device = device::make_cpu_device();
  ModelConfig config = everything_config();
  config.vocab_size = 1000;
  const Network small(config, DType::bf16, {2, 8}, *device, 100);
  config.vocab_size = 100000;
  const Network large(config, DType::bf16, {2, 8}, *device, 100);
  EXPECT_EQ(small.head_workspace(), large.head_workspace());
}

}  // namespace
}  // namespace headrace::model
