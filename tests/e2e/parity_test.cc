// Training curves against Hugging Face transformers on PyTorch (tests/golden/README.md): every
// family, 20 AdamW steps with warm-up, clipping and gradient accumulation, state streaming through
// all tiers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "e2e/training_harness.h"

namespace headrace {
namespace {

constexpr int64_t kSteps = 20;
constexpr int64_t kMicroBatches = 2;
constexpr int64_t kSequences = 2;
constexpr int64_t kSeq = 24;

std::string golden_folder(const std::string& family) {
  return std::string(HEADRACE_SOURCE_DIR) + "/tests/golden/data/parity/" + family;
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return nlohmann::json::parse(file);
}

std::vector<int32_t> read_windows(const std::string& path) {
  std::vector<int32_t> windows(kSteps * kMicroBatches * kSequences * (kSeq + 1));
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(windows.data()),
            static_cast<std::streamsize>(windows.size() * sizeof(int32_t)));
  EXPECT_TRUE(file) << path;
  return windows;
}

test::CurveSettings golden_curve(const std::string& family, const nlohmann::json& numbers,
                                 DType dtype) {
  test::CurveSettings settings;
  settings.model_folder = golden_folder(family);
  settings.dtype = dtype;
  settings.shape = {kSequences, kSeq};
  const auto windows = read_windows(settings.model_folder + "/windows.i32");
  const int32_t* at = windows.data();
  for (int64_t step = 0; step < kSteps; ++step) {
    auto& batches = settings.steps.emplace_back();
    for (int64_t m = 0; m < kMicroBatches; ++m, at += kSequences * (kSeq + 1)) {
      batches.push_back(test::batch_from_windows(at, kSequences, kSeq));
    }
    settings.learning_rates.push_back(numbers["learning_rate"][static_cast<size_t>(step)]);
  }
  return settings;
}

engine::EngineOptions everything_on_nvme() {
  engine::EngineOptions options;
  options.memory.device_memory = kMiB * 2;
  options.memory.host_memory = kMiB * 3;
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  options.memory.nvme_activations = true;
  options.vocab_tile = 128;
  return options;
}

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, Fp32CurveAndWeightsMatchTransformers) {
  const auto golden = read_json(golden_folder(GetParam()) + "/parity.json")["fp32"];
  const test::Curve curve =
      train_curve(golden_curve(GetParam(), golden, DType::f32), everything_on_nvme());
  for (size_t step = 0; step < kSteps; ++step) {
    const double loss = golden["loss"][step];
    EXPECT_NEAR(curve.losses[step], loss, 1e-5 * loss) << "step " << step;
    const double norm = golden["gradient_norm"][step];
    EXPECT_NEAR(curve.gradient_norms[step], norm, 1e-4 * norm) << "step " << step;
  }
  // final.safetensors lies beside the model's config: read it as a folder of its own.
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(golden_folder(GetParam()) + "/config.json", folder / "config.json");
  std::filesystem::copy_file(golden_folder(GetParam()) + "/final.safetensors",
                             folder / "model.safetensors");
  const auto expected = test::packed_weights(model::CheckpointReader(folder.path()));
  EXPECT_LT(test::largest_difference(curve.weights, expected), 1e-4);
}

TEST_P(Parity, Bf16CurveMatchesTransformers) {
  const auto golden = read_json(golden_folder(GetParam()) + "/parity.json")["bf16"];
  const test::Curve curve =
      train_curve(golden_curve(GetParam(), golden, DType::bf16), everything_on_nvme());
  for (size_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(curve.losses[step], golden["loss"][step].get<double>(), 2e-2) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Parity,
                         testing::Values("llama_llama3", "llama_linear", "mistral", "qwen2",
                                         "qwen3"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace headrace
