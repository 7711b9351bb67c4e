#include "tools/setting_options.h"

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "device/gpu.h"
#include "proto/config_parser.h"

namespace headrace::tools {

namespace {

std::optional<Bytes> size_of(const std::string& text, const char* flag) {
  if (text.empty() || text == "auto") {
    return std::nullopt;
  }
  try {
    return parse_bytes(text, flag);
  } catch (const InputError& error) {
    throw InputError(std::string(error.what()) + ", or auto");
  }
}

}  // namespace

void SettingOptions::add_to(Command& command) {
  command.add_option("--config", config_, "ds_config.json")->required();
  command.add_option("--device-memory", device_memory_,
                     "Device budget, such as 64MiB; without a GPU it is emulated");
  command.add_option("--host-memory", host_memory_, "Host budget, such as 256MiB");
  command.add_option("--nvme-path", context_.nvme_paths,
                     "Folder for state on NVMe; several: striped");
  command.add_option("--nvme-budget", nvme_budget_, "Most bytes on NVMe");
  command.add_option("--micro-batch", context_.micro_batch, "train_micro_batch_size_per_gpu");
  command.add_option("--gradient-accumulation", context_.accumulation_steps,
                     "gradient_accumulation_steps");
  command.add_option("--lr", context_.lr, "Learning rate");
  command.add_option("--warmup-steps", context_.warmup_steps, "For an \"auto\" scheduler");
  command.add_option("--seed", context_.seed, "Seed of the data order");
}

engine::Settings SettingOptions::resolve(const model::ModelConfig& model, int64_t total_steps,
                                         bool names_gpu) {
  context_.device_memory = size_of(device_memory_, "--device-memory");
  context_.host_memory = size_of(host_memory_, "--host-memory");
  context_.nvme_budget = size_of(nvme_budget_, "--nvme-budget");
  context_.total_steps = total_steps;
  context_.hidden_size = model.hidden_size;
  context_.vocab_size = model.vocab_size;
  context_.end_tokens = model.end_tokens;
  context_.has_gpu = names_gpu;
  device::GpuSearch search;
  if (!names_gpu) {
    search = device::find_gpu();
    context_.has_gpu = search.gpu.has_value();
    context_.no_gpu_reason = search.refusal;
    if (!search.gpu) {
      log_debug("no GPU: {}", search.refusal);
    }
  }
  const proto::ParsedConfig parsed = proto::load_config(config_);
  const engine::Resolution resolution = engine::resolve(parsed.config, context_, config_);
  for (const auto* notes : {&parsed.notes, &resolution.notes}) {
    for (const proto::Note& note : *notes) {
      log_message(note.level, note.text);
    }
  }
  engine::Settings settings = resolution.settings;
  settings.gpu = std::move(search);
  return settings;
}

}  // namespace headrace::tools
