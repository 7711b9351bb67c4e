// A sequence of 32,768 tokens in a device budget of 64 MiB: saved activations go down to nvme.
#include <gtest/gtest.h>

#include "e2e/training_harness.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace headrace {
namespace {

constexpr int64_t kSeq = 32768;
constexpr int64_t kHidden = 64;

TEST(LongSequenceSlow, FitsASmallDeviceAndChangesNoBit) {
  const test::TemporaryFolder folder;
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.vocab_size = 301;
  config.hidden_size = kHidden;
  config.intermediate_size = 128;
  config.layers = 4;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 32;
  config.max_positions = kSeq;
  model::init_model(config, DType::f32, 3, folder.path());
  test::CurveSettings settings;
  settings.model_folder = folder.path();
  settings.dtype = DType::bf16;
  settings.shape = {1, kSeq};
  settings.learning_rates = {1e-3};
  settings.steps = test::random_steps(5, 1, 1, settings.shape, 301);

  engine::EngineOptions options;
  options.memory.host_memory = kGiB;
  options.vocab_tile = 64;
  options.pin_memory = false;
  const test::Curve in_memory = train_curve(settings, options);
  options.memory.device_memory = kMiB * 64;
  options.memory.host_memory = kMiB * 8;
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  options.memory.nvme_activations = true;
  int64_t written = 0;
  settings.observe = [&](const engine::EngineReport& report) {
    written = report.traffic.nvme_write;
  };
  EXPECT_EQ(train_curve(settings, options), in_memory);
  // Some activations have been on nvme: more was written than weights and state.
  constexpr int64_t kActivation = kSeq * kHidden * 2;
  EXPECT_GT(written, kActivation);
}

}  // namespace
}  // namespace headrace
