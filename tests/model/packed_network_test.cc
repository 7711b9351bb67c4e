// Sequences that several documents share, in the whole network.
#include "base/error.h"
#include "tests/model/network_parity.h"

namespace headrace::model {
namespace {

/// Against transformers, which has run each document alone.
class PackedParity : public NetworkParity {
 protected:
  PackedParity() : NetworkParity("packed.safetensors", 3, std::nullopt) {}
};

TEST_P(PackedParity, LossAndGradients) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    compare(dtype);
  }
}

TEST_P(PackedParity, CutBlocksGiveTheSameLossAndGradients) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    compare(dtype, {1, kGoldenPiece});
  }
}

TEST_P(PackedParity, BitsDoNotDependOnRecomputeLevelAddressesOrThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    NamedValues expected;
    const double expected_loss = make_harness(dtype, {})->loss_and_gradients(kUnscaled, expected);
    for (const NetworkHarness::Options& options :
         {NetworkHarness::Options{.recompute = Recompute::none},
          NetworkHarness::Options{.recompute = Recompute::mlp},
          NetworkHarness::Options{.workspace_skip = 1984, .din_is_dout = false},
          NetworkHarness::Options{.threads = 2}}) {
      NamedValues gradients;
      EXPECT_EQ(make_harness(dtype, options)->loss_and_gradients(kUnscaled, gradients),
                expected_loss);
      expect_same_bits(gradients, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PackedParity,
                         testing::Values("llama_llama3", "llama_linear", "mistral", "qwen2",
                                         "qwen3"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(PackedNetwork, OneDocumentChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    NamedValues expected;
    NetworkHarness plain(everything_config(), dtype, {2, 9});
    prepare(plain);
    const double expected_loss = plain.loss_and_gradients(kUnscaled, expected);
    NetworkHarness packed(everything_config(), dtype, {2, 9, true});
    prepare(packed);
    NamedValues gradients;
    EXPECT_EQ(packed.loss_and_gradients(kUnscaled, gradients), expected_loss);
    expect_same_bits(gradients, expected);
  }
}

TEST(PackedNetwork, TheBordersOfDocumentsAreConstantsOfAPackedShape) {
  const auto device = device::make_cpu_device();
  Network plain(everything_config(), DType::f32, {2, 9}, *device);
  const Network packed(everything_config(), DType::f32, {2, 9, true}, *device);
  EXPECT_EQ(packed.constant_bytes() - plain.constant_bytes(), Bytes(2 * 18 * 4));
  ModelConfig windowed = everything_config();
  for (const int64_t window : {8, 9}) {
    windowed.sliding_window = window;
    const Network both(windowed, DType::f32, {2, 9, true}, *device);
    EXPECT_EQ(both.constant_bytes() - plain.constant_bytes(),
              Bytes((window == 8 ? 3 : 2) * 18 * 4));
  }
  const auto stream = device->create_stream("test");
  EXPECT_THROW(plain.set_documents(*stream, {}), InternalError);
}

}  // namespace
}  // namespace headrace::model
