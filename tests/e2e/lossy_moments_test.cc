// 8-bit moments against fp32 ones: what they cost in loss, how a run changes over to them, what is
// stored and exported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "e2e/resume_fixture.h"
#include "e2e/training_harness.h"
#include "engine/export.h"
#include "engine/run_access.h"
#include "engine/run_state.h"
#include "engine/state_reader.h"
#include "model/torch_file.h"

namespace headrace {
namespace {

using engine::StateArray;
using ::testing::HasSubstr;

/// Sixteen batches over and over, so that there is something to learn.
test::CurveSettings curve_settings(const std::string& folder, size_t steps) {
  test::CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = DType::bf16;
  settings.shape = {4, 32};
  settings.gradient_clipping = 1;
  const auto batches = test::random_steps(7, 16, 1, settings.shape, 301);
  for (size_t i = 0; i < steps; ++i) {
    settings.steps.push_back(batches[i % batches.size()]);
    settings.learning_rates.push_back(2e-3 * std::min(1.0, static_cast<double>(i + 1) / 20));
  }
  return settings;
}

engine::EngineOptions options_of(DType moments) {
  engine::EngineOptions options;
  options.memory.host_memory = kMiB * 256;
  options.memory.state.moment_dtype = moments;
  options.pin_memory = false;
  return options;
}

double mean(const std::vector<double>& losses, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    sum += losses[i];
  }
  return sum / static_cast<double>(end - begin);
}

TEST(LossyMoments, TrainAsFp32MomentsDo) {
  constexpr size_t kSteps = 160;
  const test::TemporaryFolder folder;
  model::init_model(test::small_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = curve_settings(folder.path(), kSteps);
  const test::Curve fp32 = train_curve(settings, options_of(DType::f32));
  const test::Curve eight = train_curve(settings, options_of(DType::u8));
  EXPECT_NE(eight.losses, fp32.losses);
  EXPECT_GT(fp32.losses.front(), 5.5);
  for (size_t begin = 0; begin < kSteps; begin += 16) {  // once through all batches
    const double expected = mean(fp32.losses, begin, begin + 16);
    EXPECT_NEAR(mean(eight.losses, begin, begin + 16), expected, 0.03 * expected) << begin;
  }
  EXPECT_LT(mean(fp32.losses, kSteps - 16, kSteps), 3.5);  // it did learn
}

using LossyMomentsRun = test::ResumeTest;
const test::Case kEightBits{.has_8bit_moments = true};

/// Every moment of every parameter by a reader, in the order of their names.
std::map<std::string, std::vector<float>> moments_of(tiers::ExtentStore& store, StateArray array) {
  const proto::RunState state = engine::run_state_of(store, std::nullopt);
  engine::StateReader reader(store, std::nullopt, state.layout());
  std::map<std::string, std::vector<float>> moments;
  for (const proto::StoredModule& module : state.layout().modules()) {
    for (const proto::StoredParameter& parameter : module.parameters()) {
      std::vector<float>& values = moments[parameter.name()];
      values.resize(static_cast<size_t>(reader.count(parameter.name()).count()));
      reader.read(parameter.name(), array, Elements(0), values);
    }
  }
  return moments;
}

TEST_F(LossyMomentsRun, AnFp32RunGoesOnWith8BitMomentsWhereThatIsAllowed) {
  train(job("run"), config_of({}), 2);
  const auto before = moments_of(*engine::open_run(folder_ / "run"), StateArray::moment2);
  EXPECT_THAT(refusal(job("run"), config_of(kEightBits)),
              HasSubstr("optimizer.moment_dtype: f32 before, u8 now"));
  engine::TrainJob allowed = job("run", 2);
  allowed.allowed_changes = {"optimizer.moment_dtype"};
  EXPECT_EQ(train(allowed, config_of(kEightBits)).resumed_from, 2);
  // No step was left to do: the moments are those of before, each to the nearest code of its block.
  const auto store = engine::open_run(folder_ / "run");
  const auto after = moments_of(*store, StateArray::moment2);
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, values] : before) {
    const std::vector<float>& rounded = after.at(name);
    ASSERT_EQ(rounded.size(), values.size());
    for (size_t begin = 0; begin < values.size(); begin += 64) {
      const size_t end = std::min(values.size(), begin + 64);
      const float largest = *std::max_element(values.begin() + static_cast<int64_t>(begin),
                                              values.begin() + static_cast<int64_t>(end));
      for (size_t i = begin; i < end; ++i) {
        const float bound = std::max(values[i] / 32, largest * 0x1p-18F);
        ASSERT_NEAR(rounded[i], values[i], bound * 1.05F) << name << " " << i;
        ASSERT_EQ(rounded[i] > 0, values[i] > 0) << name << " " << i;
      }
    }
  }
  EXPECT_TRUE(store->verify([](Bytes, Bytes) {}).empty());
}

TEST_F(LossyMomentsRun, IsExportedAsTheNumbersThatItsCodesStandFor) {
  train(job("run", 3), config_of(kEightBits));
  const auto store = engine::open_run(folder_ / "run");
  engine::ExportOptions options;
  options.output_folder = folder_ / "universal";
  engine::export_universal(*store, options, [](int64_t, int64_t) {});
  for (const auto& [array, file] :
       {std::pair(StateArray::moment1, "exp_avg"), std::pair(StateArray::moment2, "exp_avg_sq")}) {
    for (const auto& [name, values] : moments_of(*store, array)) {
      const std::string path =
          folder_ / fmt::format("universal/global_step3/zero/{}/{}.pt", name, file);
      std::vector<float> exported(values.size());
      model::TorchFile(path).read_f32(Elements(0), exported);
      EXPECT_EQ(exported, values) << path;
    }
  }
}

}  // namespace
}  // namespace headrace
