// Sliding windows that are shorter than the sequences, in the whole network.
#include "tests/model/network_parity.h"

namespace headrace::model {
namespace {

/// Against transformers.
class WindowedParity : public NetworkParity {
 protected:
  WindowedParity() : NetworkParity("windowed.safetensors", std::nullopt, 5) {}
};

class WindowedPackedParity : public NetworkParity {
 protected:
  WindowedPackedParity() : NetworkParity("windowed_packed.safetensors", 3, 5) {}
};

TEST_P(WindowedParity, LossAndGradients) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    compare(dtype);
  }
}

TEST_P(WindowedParity, CutBlocksGiveTheSameLossAndGradients) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    compare(dtype, {1, kGoldenPiece});
  }
}

TEST_P(WindowedPackedParity, LossAndGradients) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    compare(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, WindowedParity, testing::Values("mistral"));
INSTANTIATE_TEST_SUITE_P(Families, WindowedPackedParity, testing::Values("mistral"));

TEST(WindowedNetwork, OneAsLongAsTheSequencesChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    NamedValues expected;
    NetworkHarness plain(everything_config(), dtype, {2, 9});
    prepare(plain);
    const double expected_loss = plain.loss_and_gradients(kUnscaled, expected);
    ModelConfig config = everything_config();
    for (const int64_t window : {8, 9}) {
      config.sliding_window = window;
      NetworkHarness windowed(config, dtype, {2, 9});
      prepare(windowed);
      NamedValues gradients;
      const double loss = windowed.loss_and_gradients(kUnscaled, gradients);
      if (window == 9) {
        EXPECT_EQ(loss, expected_loss);
        expect_same_bits(gradients, expected);
      } else {
        EXPECT_NE(loss, expected_loss) << "the last token does not see the first one";
      }
    }
  }
}

TEST(WindowedNetwork, WhatIsSeenIsAConstantWhereAWindowIsShorter) {
  const auto device = device::make_cpu_device();
  ModelConfig config = everything_config();
  const Bytes without = Network(config, DType::f32, {2, 9}, *device).constant_bytes();
  config.sliding_window = 9;
  EXPECT_EQ(Network(config, DType::f32, {2, 9}, *device).constant_bytes(), without);
  config.sliding_window = 8;
  EXPECT_EQ(Network(config, DType::f32, {2, 9}, *device).constant_bytes() - without,
            Bytes(2 * 18 * 4));
}

}  // namespace
}  // namespace headrace::model
