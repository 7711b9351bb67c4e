// A run on the CUDA device, here the fake one, goes on from a checkpoint wherever its optimizer
// lives: on the device, in the host or on nvme.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "e2e/cuda_training.h"
#include "engine/config/resolve.h"
#include "engine/trainer.h"
#include "proto/config_parser.h"

namespace headrace {
namespace {

using device::testing::FakeCuda;
using nlohmann::json;

constexpr int64_t kSteps = 6;

class CudaResume : public testing::Test {
 protected:
  CudaResume() {
    model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder_ / "model");
    std::vector<uint16_t> tokens(3000);
    Random random(9, 0);
    for (uint16_t& token : tokens) {
      token = static_cast<uint16_t>(random.below(203));
    }
    std::ofstream(folder_ / "tokens.bin", std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * sizeof(uint16_t)));
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
    device::GpuFound found;
    found.name = "Fake GPU";
    found.make_device = [fake = fake_](const device::GpuOptions& how) {
      return std::make_unique<device::cuda::CudaDevice>(fake, 0, how);
    };
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
    std::atomic<bool> stop{false};
    engine::TrainObserver observer;
    observer.step = [&](const engine::StepReport& report, int64_t) {
      stop = report.step >= stop_after && report.step < job.steps;
    };
    return engine::train(job, settings_with(optimizer), observer, stop);
  }

  std::string weights_of(const std::string& output) const {
    std::ifstream file(folder_ / (output + "/model.safetensors"), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
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
