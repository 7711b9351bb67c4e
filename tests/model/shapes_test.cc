#include "model/shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace headrace::model {
namespace {

/// The number of parameters that the publisher's checkpoints hold, tied matrices once.
const std::map<std::string, int64_t> kPublished = {
    {"smollm2-135m", 134'515'008},
    {"smollm2-360m", 361'821'120},
    {"llama-2-7b", 6'738'415'616},
    {"llama-2-13b", 13'015'864'320},
    {"llama-2-70b", 68'976'648'192},
    {"llama-3.1-8b", 8'030'261'248},
    {"llama-3.1-70b", 70'553'706'496},
    {"llama-3.2-1b", 1'235'814'400},
    {"llama-3.2-3b", 3'212'749'824},
    {"mistral-7b", 7'248'023'552},
    {"mistral-nemo-12b", 12'247'782'400},
    {"mistral-small-24b", 23'572'403'200},
    {"mistral-large-123b", 122'610'069'504},
    {"qwen2.5-0.5b", 494'032'768},
    {"qwen2.5-7b", 7'615'616'512},
    {"qwen2.5-14b", 14'770'033'664},
    {"qwen2.5-72b", 72'706'203'648},
    {"qwen3-0.6b", 596'049'920},
    {"qwen3-1.7b", 1'720'574'976},
    {"qwen3-4b", 4'022'468'096},
    {"qwen3-8b", 8'190'735'360},
    {"qwen3-14b", 14'768'307'200},
    {"qwen3-32b", 32'762'123'264},
};

TEST(Shapes, HaveThePublishedNumberOfParameters) {
  const std::vector<std::string> names = shape_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const auto& [name, parameters] : kPublished) {
    EXPECT_EQ(parameter_count(shape_config(name)).count(), parameters) << name;
  }
  for (const std::string& name : names) {
    EXPECT_EQ(kPublished.count(name), name.starts_with("dense-") ? 0U : 1U) << name;
  }
}

TEST(Shapes, TheMadeUpOnesHaveTheirNominalSize) {
  EXPECT_NEAR(static_cast<double>(parameter_count(shape_config("dense-40b")).count()), 40e9, 0.5e9);
  EXPECT_NEAR(static_cast<double>(parameter_count(shape_config("dense-175b")).count()), 175e9,
              0.5e9);
}

TEST(Shapes, AreFoundByNameFileOrFolder) {
  const ModelConfig shape = shape_config("qwen3-0.6b");
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() + "/config.json") << to_config_json(shape, DType::bf16);
  for (const std::string& name :
       {std::string("qwen3-0.6b"), folder.path(), folder.path() + "/config.json"}) {
    EXPECT_EQ(parameter_count(find_model_config(name)), parameter_count(shape)) << name;
  }
}

TEST(Shapes, AnUnknownNameListsTheNames) {
  try {
    find_model_config("llama-9b");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("llama-3.1-70b"), std::string::npos);
  }
  EXPECT_THROW(shape_config("llama-9b"), UsageError);
}

}  // namespace
}  // namespace headrace::model
