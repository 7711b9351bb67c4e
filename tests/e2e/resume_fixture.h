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
#include "engine/config/resolve.h"
#include "engine/export.h"
#include "engine/run_access.h"
#include "engine/trainer.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "proto/config_parser.h"
#include "support/temporary_folder.h"

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

inline model::ModelConfig small_model() {
  model::ModelConfig config;
  config.family = model::Family::qwen3;
  config.vocab_size = 301;
  config.hidden_size = 96;
  config.intermediate_size = 200;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.max_positions = 64;
  config.qk_norm = true;
  return config;
}

class ResumeTest : public ::testing::Test {
 protected:
  explicit ResumeTest(const model::ModelConfig& config = small_model()) {
    model::init_model(config, DType::f32, 3, folder_ / "model");
    std::vector<uint16_t> tokens(5000);
    Random random(9, 0);
    for (uint16_t& token : tokens) {
      token = static_cast<uint16_t>(random.below(301));
    }
    std::ofstream(folder_ / "tokens.bin", std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * sizeof(uint16_t)));
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

  /// Trains up to `stop_after`, as after Ctrl-C in that step.
  engine::TrainSummary train(const engine::TrainJob& job, const json& config,
                             int64_t stop_after = kSteps) const {
    const engine::Settings settings = settings_of(job, config);
    std::atomic<bool> stop{false};
    engine::TrainObserver observer;
    observer.step = [&](const engine::StepReport& report, int64_t) {
      stop = report.step >= stop_after && report.step < job.steps;
    };
    return engine::train(job, settings, observer, stop);
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
    std::ifstream file(folder_ / (output + "/model.safetensors"), std::ios::binary);
    result.weights = std::string(std::istreambuf_iterator<char>(file), {});
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
        std::ifstream file(entry.path(), std::ios::binary);
        files[fs::relative(entry.path(), base)] =
            std::string(std::istreambuf_iterator<char>(file), {});
      }
    }
    return files;
  }

  TemporaryFolder folder_;
};

}  // namespace headrace::test
