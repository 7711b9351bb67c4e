#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/checkpoint.h"
#include "model/presets.h"
#include "tests/model/checkpoint_test_util.h"

namespace headrace::model {
namespace {

std::vector<float> read_tensor(const CheckpointReader& reader, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(reader.tensors().at(name).count.count()));
  reader.read_f32(name, Elements(0), values);
  return values;
}

TEST(InitModel, IsAFunctionOfTheSeed) {
  const TempFolder folder;
  init_model(little_config(), DType::f32, 1, folder.file("a"));
  init_model(little_config(), DType::f32, 1, folder.file("b"));
  init_model(little_config(), DType::f32, 2, folder.file("c"));
  const std::string a = read_bytes(folder.file("a/model.safetensors"));
  EXPECT_EQ(a, read_bytes(folder.file("b/model.safetensors")));
  EXPECT_NE(a, read_bytes(folder.file("c/model.safetensors")));
}

TEST(InitModel, DtypeOnlyRounds) {
  const TempFolder folder;
  init_model(little_config(), DType::f32, 5, folder.file("a"));
  init_model(little_config(), DType::bf16, 5, folder.file("b"));
  const CheckpointReader exact(folder.file("a"));
  const CheckpointReader rounded(folder.file("b"));
  for (const auto& [name, entry] : exact.tensors()) {
    const auto want = read_tensor(exact, name);
    const auto got = read_tensor(rounded, name);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 0x1p-8F) << name;
    }
  }
}

TEST(InitModel, ValuesAreNormalAndTensorsDiffer) {
  const TempFolder folder;
  init_model(preset_config("tiny"), DType::f32, 3, folder.path());
  const CheckpointReader reader(folder.path());
  reader.check(module_specs(preset_config("tiny")));
  const auto gate = read_tensor(reader, "model.layers.0.mlp.gate_proj.weight");
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = gate[i] / 0.02;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    neighbours += i > 0 ? x * gate[i - 1] / 0.02 : 0;
  }
  const auto n = static_cast<double>(gate.size());
  const double sigma = 1 / std::sqrt(n);  // of the mean of n standard normals
  EXPECT_NEAR(sum / n, 0, 5 * sigma);
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96.0) * sigma);
  EXPECT_NEAR(neighbours / n, 0, 5 * sigma);
  EXPECT_NE(gate, read_tensor(reader, "model.layers.1.mlp.gate_proj.weight"));
  for (const float x : read_tensor(reader, "model.layers.3.input_layernorm.weight")) {
    ASSERT_EQ(x, 1.0F);
  }
}

TEST(InitModel, BiasesAreZero) {
  const TempFolder folder;
  ModelConfig config = little_config();
  config.family = Family::qwen2;
  config.attention_bias = true;
  init_model(config, DType::f32, 3, folder.path());
  const CheckpointReader reader(folder.path());
  for (const float x : read_tensor(reader, "model.layers.0.self_attn.q_proj.bias")) {
    ASSERT_EQ(x, 0.0F);
  }
}

TEST(InitModel, ByteLevelModelsAreMarked) {
  const TempFolder folder;
  init_model(little_config(), DType::bf16, 1, folder.file("other"));
  EXPECT_FALSE(is_byte_level(folder.file("other")));
  ModelConfig bytes = little_config();
  bytes.vocab_size = kByteVocabulary;
  init_model(bytes, DType::bf16, 1, folder.file("bytes"));
  EXPECT_TRUE(is_byte_level(folder.file("bytes")));
  const auto config = nlohmann::json::parse(read_bytes(folder.file("bytes/config.json")));
  EXPECT_EQ(config.at("eos_token_id"), 257);
  folder.write("config.json", R"({"headrace_vocabulary":"words"})");
  expect_error<InputError>([&] { is_byte_level(folder.path()); }, {"words", "bytes"});
  EXPECT_THROW(is_byte_level(folder.file("none")), InputError);
}

TEST(Presets, HaveTheStatedSizesAndSurviveConfigJson) {
  const std::map<std::string, std::pair<double, double>> millions = {
      {"tiny", {6, 8}},           {"small", {25, 30}},         {"medium", {105, 120}},
      {"large", {900, 1100}},     {"smol", {134.4, 134.6}},    {"smol-360m", {361, 362}},
      {"qwen3-0.6b", {595, 597}}, {"mistral-7b", {7240, 7250}}};
  EXPECT_EQ(preset_names().size(), millions.size());
  for (const std::string& name : preset_names()) {
    const ModelConfig config = preset_config(name);
    const double count = static_cast<double>(parameter_count(config).count()) / 1e6;
    EXPECT_GE(count, millions.at(name).first) << name;
    EXPECT_LE(count, millions.at(name).second) << name;
    const ModelConfig parsed =
        parse_model_config(to_config_json(config, DType::bf16), name + ".json");
    EXPECT_EQ(parameter_count(parsed), parameter_count(config)) << name;
    EXPECT_EQ(parsed.rope_theta, config.rope_theta) << name;
  }
}

TEST(Presets, UnknownNameListsTheNames) {
  expect_error<UsageError>([] { preset_config("huge"); }, {"\"huge\"", "tiny", "small", "smol"});
}

}  // namespace
}  // namespace headrace::model
