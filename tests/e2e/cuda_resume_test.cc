// A run on the CUDA device, here the fake one, goes on from a checkpoint wherever its optimizer
// lives: on the device, in the host or on nvme.
#include <gtest/gtest.h>

#include "e2e/cuda_training.h"
#include "e2e/resume_fixture.h"

namespace headrace {
namespace {

using device::testing::FakeCuda;
using nlohmann::json;
using test::kSteps;

class CudaResume : public testing::Test {
 protected:
  CudaResume() {
    model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder_ / "model");
    test::write_random_tokens(folder_ / "tokens.bin", 3000, 203);
  }

  /// `optimizer`: "none" leaves it on the device.
  engine::Settings settings_with(const std::string& optimizer) {
    const json config = {
        {"train_micro_batch_size_per_gpu", 2},
        {"gradient_accumulation_steps", 2},
        {"bf16", {{"enabled", true}}},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 2e-3}}}}},
        {"zero_optimization", {{"stage", 3}, {"offload_optimizer", {{"device", optimizer}}}}},
        {"headrace", {{"host_memory", "64MiB"}, {"device_memory", "16MiB"}}}};
    engine::ResolveContext context;
    context.nvme_paths = {folder_ / "nvme"};
    context.total_steps = kSteps;
    context.has_gpu = true;
    engine::Settings settings =
        engine::resolve(proto::parse_config(config.dump(), "c.json").config, context).settings;
    device::GpuFound found = test::fake_gpu(fake_);
    found.name = "Fake GPU";
    settings.gpu = {found, ""};
    return settings;
  }

  engine::TrainSummary train(const std::string& output, const std::string& optimizer,
                             int64_t stop_after = kSteps) {
    engine::TrainJob job;
    job.model_folder = folder_ / "model";
    job.data_path = folder_ / "tokens.bin";
    job.output_folder = folder_ / output;
    job.steps = kSteps;
    job.seq = 24;
    return test::train_up_to(job, settings_with(optimizer), stop_after);
  }

  std::string weights_of(const std::string& output) const {
    return test::read_bytes(folder_ / (output + "/model.safetensors"));
  }

  std::shared_ptr<FakeCuda> fake_ = std::make_shared<FakeCuda>();
  test::TemporaryFolder folder_;
};

TEST_F(CudaResume, GoesOnWhereverTheOptimizerLives) {
  train("whole", "none");
  EXPECT_GT(fake_->calls("lt_multiply"), 0) << "the fake GPU computed";
  EXPECT_TRUE(train("parts", "none", 2).interrupted);
  EXPECT_EQ(train("parts", "nvme", 3).resumed_from, 2);
  EXPECT_EQ(train("parts", "cpu", 4).resumed_from, 3);
  EXPECT_EQ(train("parts", "none", 5).resumed_from, 4);
  EXPECT_EQ(train("parts", "none").resumed_from, 5);
  ASSERT_FALSE(weights_of("whole").empty());
  EXPECT_TRUE(weights_of("parts") == weights_of("whole"));
  EXPECT_EQ(fake_->live_objects(), 0);
}

}  // namespace
}  // namespace headrace
