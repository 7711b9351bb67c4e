// A process that trains again and again keeps nothing of it: no file descriptors, locked memory,
// threads, or files.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "e2e/training_harness.h"
#include "model/model_config.h"

namespace headrace {
namespace {

/// Whose names begin so.
int64_t entries(const std::string& folder, const std::string& name = "") {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    count += entry.path().filename().string().starts_with(name) ? 1 : 0;
  }
  return count;
}

std::string status_line(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) {
      return line;
    }
  }
  return "none";
}

TEST(Cycles, AHundredRunsLeaveTheProcessAsItWas) {
  const test::TemporaryFolder model_folder;
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.vocab_size = 67;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.layers = 1;
  config.heads = 2;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.max_positions = 32;
  model::init_model(config, DType::f32, 3, model_folder.path());
  test::CurveSettings settings;
  settings.model_folder = model_folder.path();
  settings.shape = {1, 16};
  std::vector<int32_t> window(17, 5);
  settings.steps = {{test::batch_from_windows(window.data(), 1, 16)}};
  settings.learning_rates = {1e-3};
  engine::EngineOptions options;
  options.memory.host_memory = kMiB * 8;
  options.memory.device_memory = kMiB * 4;
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  const test::Curve first = train_curve(settings, options);  // what is opened once per process
  const int64_t descriptors = entries("/proc/self/fd");
  const int64_t threads = entries("/proc/self/task");
  const std::string locked = status_line("VmLck");
  // Other tests have folders there, too.
  const std::string own_folders = fmt::format("test-{}-", ::getpid());
  const int64_t files = entries(HEADRACE_BINARY_DIR, own_folders);
  for (int cycle = 0; cycle < 100; ++cycle) {
    EXPECT_EQ(train_curve(settings, options), first);
  }
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_EQ(status_line("VmLck"), locked);
  EXPECT_EQ(entries(HEADRACE_BINARY_DIR, own_folders), files);
}

}  // namespace
}  // namespace headrace
