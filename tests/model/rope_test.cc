#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace headrace::model {
namespace {

class RopeParity : public testing::TestWithParam<const char*> {
 protected:
  std::string path(const std::string& file) const {
    return std::string(HEADRACE_SOURCE_DIR "/tests/golden/data/parity/") + GetParam() + "/" + file;
  }
  ModelConfig config() const {
    std::stringstream text;
    text << std::ifstream(path("config.json")).rdbuf();
    return parse_model_config(text.str(), path("config.json"));
  }
};

TEST_P(RopeParity, FrequenciesAreThoseOfTransformers) {
  const auto parity = nlohmann::json::parse(std::ifstream(path("parity.json")));
  const auto expected = parity["rope_frequencies"].get<std::vector<double>>();
  const std::vector<float> actual = rope_frequencies(config());
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 3e-7 * expected[i]) << "pair " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RopeParity,
                         testing::Values("llama_llama3", "llama_linear", "mistral", "qwen2",
                                         "qwen3"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(Rope, TableHoldsCosinesThenSines) {
  ModelConfig config;
  config.head_dim = 4;
  config.rope_theta = 100;
  const std::vector<float> table = rope_table(config, 3);
  ASSERT_EQ(table.size(), 12U);
  for (int position = 0; position < 3; ++position) {
    const float* row = table.data() + position * 4;
    EXPECT_NEAR(row[0], std::cos(position * 1.0), 1e-7);
    EXPECT_NEAR(row[1], std::cos(position * 0.1), 1e-7);
    EXPECT_NEAR(row[2], std::sin(position * 1.0), 1e-7);
    EXPECT_NEAR(row[3], std::sin(position * 0.1), 1e-7);
  }
}

}  // namespace
}  // namespace headrace::model
