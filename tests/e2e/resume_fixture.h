#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "e2e/small_model.h"
#include "engine/config/resolve.h"
#include "engine/export.h"
#include "engine/import.h"
#include "engine/run_access.h"
#include "engine/run_plan.h"
#include "engine/run_setup.h"
#include "engine/trainer.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "proto/config_parser.h"
#include "support/temporary_folder.h"
#include "tiers/catalog.h"

namespace headrace::test {

namespace fs = std::filesystem;
using nlohmann::json;

inline constexpr int64_t kSteps = 6;

/// A setting of the parity matrix.
struct Case {
  std::string offload = "nvme";  ///< "cpu", "nvme", "mixed": weights in the host, optimizer on nvme
  int64_t accumulation = 1;
  double clip = 1.0;
  std::string dtype = "bf16";  ///< "fp16": with overflows at first
  std::string durability = "step";
  bool has_8bit_moments = false;

  std::string name() const {
    return offload + "_" + std::to_string(accumulation) + (clip > 0 ? "_clip_" : "_free_") + dtype +
           "_" + durability + (has_8bit_moments ? "_8bit" : "");
  }
};

inline void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name();
}

/// What a run leaves for the user.
struct Result {
  std::vector<json> curve;  ///< loss, norm, rate, scale, skipped per step; validation losses
  std::string weights;      ///< bytes of model.safetensors
  bool operator==(const Result&) const = default;
};

inline std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Token data of random tokens below `vocabulary`.
inline void write_random_tokens(const fs::path& path, size_t count, uint64_t vocabulary) {
  std::vector<uint16_t> tokens(count);
  Random random(9, 0);
  for (uint16_t& token : tokens) {
    token = static_cast<uint16_t>(random.below(vocabulary));
  }
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(tokens.size() * sizeof(uint16_t)));
}

/// Trains up to `stop_after`, as after Ctrl-C in that step.
inline engine::TrainSummary train_up_to(const engine::TrainJob& job,
                                        const engine::Settings& settings, int64_t stop_after) {
  std::atomic<bool> stop{false};
  engine::TrainObserver observer;
  observer.step = [&](const engine::StepReport& report, int64_t) {
    stop = report.step >= stop_after && report.step < job.steps;
  };
  return engine::train(job, settings, observer, stop);
}

/// Changes a bit of the byte at `offset` in an extent of a run.
inline void flip_bit(const std::string& run_directory, const tiers::Extent& extent,
                     int64_t offset) {
  std::fstream file(run_directory + "/data-" + std::to_string(extent.file),
                    std::ios::in | std::ios::out | std::ios::binary);
  const auto byte = static_cast<char>(file.seekg(extent.offset + offset).get());
  file.seekp(extent.offset + offset).put(static_cast<char>(byte ^ 4));
  ASSERT_TRUE(file.good());
}

class ResumeTest : public ::testing::Test {
 protected:
  explicit ResumeTest(const model::ModelConfig& config = small_model()) {
    model::init_model(config, DType::f32, 3, folder_ / "model");
    write_random_tokens(folder_ / "tokens.bin", 5000, 301);
  }

  json config_of(const Case& each) const {
    json config = {
        {"train_micro_batch_size_per_gpu", 2},
        {"gradient_accumulation_steps", each.accumulation},
        {"gradient_clipping", each.clip},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 2e-3}}}}},
        {"scheduler",
         {{"type", "WarmupLR"}, {"params", {{"warmup_num_steps", 10}, {"warmup_max_lr", 2e-3}}}}},
        {"zero_optimization",
         {{"stage", 3},
          {"offload_param", {{"device", each.offload == "nvme" ? "nvme" : "cpu"}}},
          {"offload_optimizer", {{"device", each.offload == "cpu" ? "cpu" : "nvme"}}}}},
        {"headrace", {{"durability", each.durability}, {"host_memory", "24MiB"}}}};
    if (each.has_8bit_moments) {
      config["headrace"]["lossy_8bit_moments"] = true;
    }
    if (each.dtype == "bf16") {
      config["bf16"] = {{"enabled", true}};
    } else if (each.dtype == "fp16") {
      config["fp16"] = {{"enabled", true}, {"initial_scale_power", 24}, {"hysteresis", 1}};
    }
    return config;
  }

  engine::TrainJob job(const std::string& output, int64_t steps = kSteps) const {
    engine::TrainJob job;
    job.model_folder = folder_ / "model";
    job.data_path = folder_ / "tokens.bin";
    job.output_folder = folder_ / output;
    job.steps = steps;
    job.seq = 32;
    job.eval_steps = 2;
    job.validation_fraction = 0.2;
    job.eval_batches = 2;
    return job;
  }

  engine::Settings settings_of(const engine::TrainJob& job, const json& config) const {
    engine::ResolveContext context;
    context.nvme_paths = {folder_ / "nvme"};
    context.total_steps = job.steps;
    return engine::resolve(proto::parse_config(config.dump(), "c.json").config, context).settings;
  }

  engine::TrainSummary train(const engine::TrainJob& job, const json& config,
                             int64_t stop_after = kSteps) const {
    return train_up_to(job, settings_of(job, config), stop_after);
  }

  Result result(const std::string& output) const {
    Result result;
    std::ifstream metrics(folder_ / (output + "/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      json values = json::parse(line);
      for (const char* varying :
           {"seconds", "tokens_per_second", "binding", "binding_share", "bytes", "seconds_by_cause",
            "planned_bytes", "predicted_seconds", "updates", "bound_seconds", "seconds_by_phase"}) {
        values.erase(varying);
      }
      result.curve.push_back(values);
    }
    result.weights = read_bytes(folder_ / (output + "/model.safetensors"));
    return result;
  }

  std::string refusal(const engine::TrainJob& job, const json& config) const {
    try {
      train(job, config);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }

  /// The run as a model folder of masters and as a universal checkpoint: file names and bytes.
  std::map<std::string, std::string> exported(const std::string& output) const {
    engine::ExportOptions options;
    options.dtype = DType::f32;
    const auto ignore = [](int64_t, int64_t) {};
    const auto store = engine::open_run(folder_ / output);
    options.output_folder = folder_ / (output + "_export/model");
    engine::export_hugging_face(*store, options, ignore);
    options.output_folder = folder_ / (output + "_export/universal");
    engine::export_universal(*store, options, ignore);
    std::map<std::string, std::string> files;
    const fs::path base = folder_ / (output + "_export");
    for (const auto& entry : fs::recursive_directory_iterator(base)) {
      if (entry.is_regular_file()) {
        files[fs::relative(entry.path(), base)] = read_bytes(entry.path());
      }
    }
    return files;
  }

  TemporaryFolder folder_;
};

/// A model that is cut into tiles where the device is small.
class TiledResumeTest : public ResumeTest {
 protected:
  static constexpr int64_t kWholeDevice = int64_t{256} << 20;

  TiledResumeTest(const model::ModelConfig& model, int64_t vocab_tile)
      : ResumeTest(model), model_(model), vocab_tile_(vocab_tile) {}

  json config_with_device(const Case& each, int64_t device_memory) const {
    json config = config_of(each);
    config["headrace"]["vocab_tile"] = vocab_tile_;
    config["headrace"]["device_memory"] = device_memory;
    config["activation_checkpointing"]["cpu_checkpointing"] = true;
    return config;
  }

  engine::MemoryPlan plan_of(const json& config) const {
    const auto options = engine::make_engine_options(settings_of(job("whole"), config), 32);
    const auto device = device::make_cpu_device();
    return engine::plan_memory(
        model::Network(model_, options.dtype, options.shape, *device, options.vocab_tile), options);
  }

  /// In the smallest device that works.
  json tight_config(const Case& each) const {
    return config_with_device(
        each, plan_of(config_with_device(each, kWholeDevice)).minimum_device.count());
  }

  /// Into whole values and back into tiles, through files.
  void expect_an_import_goes_on() {
    const json tight = tight_config({});
    train(job("whole", 4), tight);
    exported("whole");
    engine::ImportOptions import;
    import.input_folder = folder_ / "whole_export/universal";
    import.model_folder = folder_ / "model";
    import.output_folder = folder_ / "moved";
    import.paths = {folder_ / "nvme"};
    import.next_sequence = 8;
    engine::import_run(import, [](int64_t, int64_t) {});
    for (const char* output : {"whole", "moved"}) {
      EXPECT_EQ(train(job(output), tight).resumed_from, 4);
    }
    EXPECT_EQ(result("moved").weights, result("whole").weights);
  }

 private:
  model::ModelConfig model_;
  int64_t vocab_tile_;
};

}  // namespace headrace::test
