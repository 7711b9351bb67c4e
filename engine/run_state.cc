#include "engine/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "engine/state_layout.h"
#include "model/checkpoint_file.h"
#include "tiers/checksum.h"

namespace headrace::engine {

namespace {

uint64_t hash_of(const std::string& text) {
  return tiers::checksum(std::as_bytes(std::span(text)));
}

/// Size and a hash of samples: the whole of a small file, places all over a large one.
std::string fingerprint(const std::string& path) {
  constexpr int64_t kSample = 65536;
  constexpr int64_t kSamples = 64;
  const model::InputFile file(path);
  const int64_t size = file.size().count();
  const int64_t stride = std::max(kSample, size / kSamples);
  std::vector<std::byte> sample;
  std::string hashes;
  for (int64_t at = 0; at < size; at += stride) {
    sample.resize(static_cast<size_t>(std::min(kSample, size - at)));
    file.read_at(at, sample);
    hashes += fmt::format("{:x},", tiers::checksum(sample));
  }
  return fmt::format("{} bytes, {:016x}", size, hash_of(hashes));
}

/// Collects names and values.
class SettingTexts {
 public:
  template <class Value>
  void add(const std::string& name, const Value& value) {
    texts_[name] = fmt::format("{}", value);
  }
  std::map<std::string, std::string> take() { return std::move(texts_); }

 private:
  std::map<std::string, std::string> texts_;
};

void add_optimizer(SettingTexts& texts, const Settings& settings) {
  const UpdateOptions& options = settings.optimizer;
  texts.add("optimizer.type", optimizer_name(options.kind));
  texts.add("optimizer.lr", options.lr);
  texts.add("optimizer.weight_decay", options.weight_decay);
  if (options.kind == OptimizerKind::adam || options.kind == OptimizerKind::lion) {
    texts.add("optimizer.beta1", options.beta1);
    texts.add("optimizer.beta2", options.beta2);
  }
  if (options.kind == OptimizerKind::adam) {
    texts.add("optimizer.adam_w_mode", options.decoupled_weight_decay);
    texts.add("optimizer.bias_correction", options.bias_correction);
  }
  if (options.kind == OptimizerKind::adam || options.kind == OptimizerKind::adagrad) {
    texts.add("optimizer.eps", options.eps);
  }
  if (options.kind == OptimizerKind::adagrad) {
    texts.add("optimizer.lr_decay", options.lr_decay);
  }
  if (options.kind == OptimizerKind::sgd) {
    texts.add("optimizer.momentum", options.momentum);
    texts.add("optimizer.dampening", options.dampening);
    texts.add("optimizer.nesterov", options.nesterov);
  }
  texts.add("optimizer.moment_dtype", headrace::to_string(settings.state.moment_dtype));
}

void add_scheduler(SettingTexts& texts, const SchedulerSettings& scheduler) {
  constexpr const char* kKinds[] = {"constant", "warmup", "warmup_decay", "warmup_cosine"};
  texts.add("scheduler.type", kKinds[static_cast<int>(scheduler.kind)]);
  const bool warms_to_lr =
      scheduler.kind == SchedulerKind::warmup || scheduler.kind == SchedulerKind::warmup_decay;
  if (warms_to_lr) {
    texts.add("scheduler.warmup_min_lr", scheduler.warmup_min_lr);
    texts.add("scheduler.warmup_max_lr", scheduler.warmup_max_lr);
  }
  if (scheduler.kind != SchedulerKind::constant) {
    texts.add("scheduler.warmup_num_steps", scheduler.warmup_steps);
    texts.add("scheduler.warmup_type",
              scheduler.warmup_shape == WarmupShape::linear ? "linear" : "log");
  }
  if (scheduler.kind == SchedulerKind::warmup_decay ||
      scheduler.kind == SchedulerKind::warmup_cosine) {
    texts.add("scheduler.total_num_steps", scheduler.total_steps);
  }
  if (scheduler.kind == SchedulerKind::warmup_cosine) {
    texts.add("scheduler.warmup_min_ratio", scheduler.warmup_min_ratio);
    texts.add("scheduler.cos_min_ratio", scheduler.cos_min_ratio);
  }
}

void add_loss_scale(SettingTexts& texts, const LossScaleSettings& scale) {
  texts.add("fp16.dynamic", scale.dynamic);
  texts.add("fp16.initial_scale", scale.initial);
  if (scale.dynamic) {
    texts.add("fp16.loss_scale_window", scale.window_steps);
    texts.add("fp16.min_loss_scale", scale.min);
    texts.add("fp16.hysteresis", scale.hysteresis);
    texts.add("fp16.consecutive_hysteresis", scale.consecutive_hysteresis);
  }
}

}  // namespace

std::map<std::string, std::string> numeric_settings(const TrainJob& job, const Settings& settings,
                                                    const model::ModelConfig& model) {
  SettingTexts texts;
  texts.add("model", fmt::format("{} layers of {}, vocabulary {}, config {:016x}", model.layers,
                                 model.hidden_size, model.vocab_size,
                                 hash_of(model::to_config_json(model, DType::f32))));
  texts.add("dtype", headrace::to_string(settings.dtype));
  texts.add("data_types.grad_accum_dtype",
            headrace::to_string(settings.fp32_gradients ? DType::f32 : settings.dtype));
  texts.add("data", fingerprint(job.data_path));
  texts.add("data.shuffle", job.shuffle);
  texts.add("data.validation_fraction", job.validation_fraction);
  texts.add("seq_len", job.seq);
  texts.add("seed", settings.seed);
  texts.add("train_micro_batch_size_per_gpu", settings.batch.micro);
  texts.add("gradient_accumulation_steps", settings.batch.accumulation_steps);
  texts.add("gradient_clipping", settings.gradient_clipping);
  texts.add("skip_nonfinite_steps", settings.skip_nonfinite_steps);
  texts.add("headrace.vocab_tile", settings.vocab_tile);
  if (settings.fp8_forward) {  // none before there was such a setting
    texts.add("headrace.lossy_fp8_forward", true);
  }
  if (settings.document_end) {
    texts.add("headrace.packing",
              fmt::format("documents end with token {}", *settings.document_end));
  }
  add_optimizer(texts, settings);
  add_scheduler(texts, settings.scheduler);
  add_loss_scale(texts, settings.loss_scale);
  return texts.take();
}

void check_settings(const std::map<std::string, std::string>& stored,
                    const std::map<std::string, std::string>& present,
                    const std::set<std::string>& allowed, const std::string& run) {
  std::set<std::string> names;
  for (const auto* settings : {&stored, &present}) {
    for (const auto& [name, text] : *settings) {
      names.insert(name);
    }
  }
  for (const std::string& name : allowed) {
    if (!names.contains(name)) {
      throw InputError(fmt::format("--allow-change {}: there is no such setting; there are {}",
                                   name, fmt::join(names, ", ")));
    }
  }
  if (stored.empty()) {
    return;
  }
  const auto text_in = [](const auto& settings, const std::string& name) -> std::string {
    const auto found = settings.find(name);
    return found != settings.end() ? found->second : "none";
  };
  std::string changes;
  std::vector<std::string> changed;
  for (const std::string& name : names) {
    const std::string before = text_in(stored, name);
    const std::string now = text_in(present, name);
    if (before != now && !allowed.contains(name)) {
      changes += fmt::format("\n  {}: {} before, {} now", name, before, now);
      changed.push_back(name);
    }
  }
  if (!changed.empty()) {
    throw InputError(fmt::format(
        "{} was trained with other settings, which would change its numbers:{}\n"
        "Set them as before, confirm the change with --allow-change {}, or begin a new run with "
        "--resume never",
        run, changes, fmt::join(changed, ",")));
  }
}

std::string optimizer_name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adam:
      return "adam";
    case OptimizerKind::adagrad:
      return "adagrad";
    case OptimizerKind::lion:
      return "lion";
    case OptimizerKind::sgd:
      return "sgd";
  }
  return "";
}

proto::RunState parse_run_state(const std::map<std::string, std::string>& run_state,
                                const std::string& run) {
  const auto found = run_state.find(kRunStateKey);
  proto::RunState state;
  if (found == run_state.end() || !state.ParseFromString(found->second) ||
      state.layout().modules_size() == 0) {
    throw InputError(run + " does not say how far it was, or says it in a way that cannot be read");
  }
  try {
    check_layout(state.layout());
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", run, error.what()));
  }
  return state;
}

}  // namespace headrace::engine
