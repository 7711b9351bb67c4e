#include "bench/lane_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/median.h"
#include "base/random.h"
#include "engine/run_plan.h"
#include "model/checkpoint.h"

namespace headrace::bench {

namespace {

constexpr int64_t kSequence = 32;
constexpr int64_t kVocabulary = 512;

model::ModelConfig model_of(const LaneSetting& setting) {
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.vocab_size = kVocabulary;
  config.hidden_size = setting.hidden;
  config.intermediate_size = setting.hidden * 3;
  config.layers = setting.layers;
  config.heads = setting.hidden / 32;
  config.kv_heads = config.heads;
  config.head_dim = 32;
  config.max_positions = kSequence;
  return config;
}

model::TokenBatch random_batch(Random& random) {
  model::TokenBatch batch;
  for (int64_t i = 0; i < kSequence; ++i) {
    batch.ids.push_back(static_cast<int32_t>(random.below(kVocabulary)));
    batch.labels.push_back(static_cast<int32_t>(random.below(kVocabulary)));
  }
  batch.counted_labels = kSequence;
  return batch;
}

Bytes percent_of(Bytes minimum, int64_t percent) {
  return align_up(minimum * percent / 100, kKiB * 4);
}

/// Where the setting's drive has one limit for both directions.
void set_drive(const LaneSetting& setting, scheduler::Rates& rates) {
  if (setting.nvme_both > 0) {
    rates.nvme_read = setting.nvme_read;
    rates.nvme_write = setting.nvme_write;
    rates.nvme_both = setting.nvme_both;
  }
}

engine::EngineOptions options_of(const LaneSetting& setting, const model::ModelConfig& config,
                                 const std::string& folder) {
  engine::EngineOptions options;
  options.dtype = DType::bf16;
  options.shape = {1, kSequence};
  options.policy = setting.policy;
  options.vocab_tile = kVocabulary;
  options.pin_memory = false;
  options.nvme_paths = {folder};
  options.nvme_budget = kGiB * 8;
  options.io.queue_depth = setting.io_depth;
  options.io.limits.read_bytes_per_second = setting.nvme_read;
  options.io.limits.write_bytes_per_second = setting.nvme_write;
  options.io.limits.both_bytes_per_second = setting.nvme_both;
  options.link_limit = setting.link;
  if (setting.compute_seconds > 0 || setting.cpu_seconds > 0) {
    options.least_seconds = [compute = setting.compute_seconds,
                             cpu = setting.cpu_seconds](const scheduler::Operation& operation) {
      return operation.lane == scheduler::Lane::compute ? compute : cpu;
    };
  }
  set_drive(setting, options.memory.rates);
  options.memory.has_nvme = true;
  options.memory.nvme_budget = options.nvme_budget;
  options.memory.offload_param = setting.weights;
  options.memory.offload_optimizer = setting.optimizer;
  options.memory.host_activations = setting.device_percent > 0;
  options.memory.micro_batches = setting.micro_batches;
  options.memory.host_memory = kGiB * 8;
  if (setting.device_percent > 0) {
    options.memory.device_memory = kGiB * 8;
  }
  const auto device = device::make_cpu_device();
  const auto network = engine::make_network(config, options, *device);
  const auto minimum = engine::minimum_budgets(config, options.dtype, options.shape,
                                               engine::network_needs(*network), options.memory);
  options.memory.host_memory = percent_of(minimum.host, setting.host_percent);
  if (setting.device_percent > 0) {
    options.memory.device_memory = percent_of(minimum.device, setting.device_percent);
  }
  return options;
}

/// Seconds of the busiest lane if each does what the schedule says at the setting's own rate; lanes
/// without a set rate count as the engine measured them.
scheduler::StepBound bound_of(const LaneSetting& setting, const engine::EngineReport& report) {
  using scheduler::Lane;
  scheduler::LaneSeconds seconds;
  std::copy(std::begin(report.bound.lane_seconds), std::end(report.bound.lane_seconds),
            seconds.begin());
  const auto set = [&](Lane lane, int64_t bytes, double rate) {
    if (rate > 0) {
      seconds[static_cast<size_t>(lane)] = static_cast<double>(bytes) / rate;
    }
  };
  set(Lane::nvme_read, report.traffic.nvme_read, setting.nvme_read);
  set(Lane::nvme_write, report.traffic.nvme_write, setting.nvme_write);
  set(Lane::host_to_device, report.traffic.host_to_device, setting.link);
  set(Lane::device_to_host, report.traffic.device_to_host, setting.link);
  scheduler::Rates rates;
  set_drive(setting, rates);
  return scheduler::channel_bound(rates, seconds);
}

}  // namespace

LaneResult run_lanes(const LaneSetting& setting, const std::string& folder, int warm_up,
                     int steps) {
  const model::ModelConfig config = model_of(setting);
  const std::string model_folder = folder + "/model";
  model::init_model(config, DType::bf16, 1, model_folder);
  const model::CheckpointReader reader(model_folder);
  engine::Engine engine(config, options_of(setting, config, folder));
  engine.load(reader, [](Elements) {});
  Random random(7, 0);
  LaneResult result;
  std::vector<double> predicted;
  std::vector<double> measured;
  std::vector<double> ratios;
  std::vector<double> shares;
  for (int step = 0; step < warm_up + steps; ++step) {
    std::vector<model::TokenBatch> batches;
    for (int64_t m = 0; m < setting.micro_batches; ++m) {
      batches.push_back(random_batch(random));
    }
    engine::StepNumbers numbers;
    numbers.optimizer.lr = 1e-4;
    numbers.optimizer.step = step + 1;
    numbers.gradient_clipping = 1;
    numbers.micro_batches = setting.micro_batches;
    const engine::EngineReport report = engine.train_step(batches, numbers);
    if (step < warm_up) {
      continue;
    }
    const scheduler::StepBound bound = bound_of(setting, report);
    predicted.push_back(report.predicted_seconds);
    measured.push_back(report.run.split.total);
    ratios.push_back(predicted.back() / measured.back());
    shares.push_back(bound.seconds / measured.back());
    result.bound_lane = bound.lane;
    result.planned = report.planned;
    result.moved = report.traffic;
    result.bytes_agree = result.bytes_agree && report.planned == report.traffic;
  }
  result.lower_bound = engine.schedule_gap()->seconds_bound;
  result.predicted = median(predicted);
  result.measured = median(measured);
  result.ratio = median(ratios);
  result.bound_share = median(shares);
  const auto [least, most] = std::minmax_element(measured.begin(), measured.end());
  result.spread = (*most - *least) / result.measured;
  return result;
}

namespace {

std::string name_of(const LaneSetting& setting) {
  const char* const place = setting.nvme_both > 0           ? "shared nvme"
                            : setting.weights == Tier::nvme ? "nvme"
                                                            : "host";
  return fmt::format("width {}, {}, budgets {} %, {} micro-batches, {}", setting.hidden, place,
                     setting.host_percent, setting.micro_batches, setting.policy);
}

/// The drive of a setting, but with one limit for both directions.
LaneSetting share_drive(LaneSetting setting) {
  setting.nvme_both = 400e6;
  setting.name = name_of(setting);
  return setting;
}

}  // namespace

std::vector<LaneSetting> lane_matrix() {
  std::vector<LaneSetting> settings;
  for (const int64_t hidden : {192, 320}) {
    for (const bool nvme : {true, false}) {
      for (const int64_t percent : {110, 200}) {
        for (const int64_t micro_batches : {1, 3}) {
          for (const char* policy : {"optimal", "lru", "liveness"}) {
            LaneSetting setting;
            setting.hidden = hidden;
            setting.device_percent = percent;
            setting.host_percent = percent;
            setting.weights = nvme ? Tier::nvme : Tier::host;
            setting.optimizer = setting.weights;
            setting.micro_batches = micro_batches;
            setting.policy = policy;
            setting.link = nvme ? 600e6 : 60e6;
            setting.compute_seconds = 5e-3;
            setting.cpu_seconds = 3e-3;
            setting.name = name_of(setting);
            settings.push_back(setting);
            if (nvme && hidden == 192) {
              settings.push_back(share_drive(setting));
            }
          }
        }
      }
    }
  }
  return settings;
}

std::vector<LaneSetting> bound_settings() {
  LaneSetting drive;
  drive.name = "bound by the drive";
  drive.hidden = 320;
  drive.host_percent = 400;
  drive.device_percent = 400;
  drive.nvme_read = 80e6;
  drive.nvme_write = 240e6;
  drive.link = 0;

  LaneSetting shared = drive;
  shared.name = "bound by a drive with one limit";
  shared.layers = 12;  // at its ends a step moves in one direction only
  shared.nvme_read = shared.nvme_write = 320e6;
  shared.nvme_both = 400e6;

  LaneSetting link;
  link.name = "bound by the link";  // weights go up twice, gradients down once
  link.hidden = 96;
  link.layers = 80;
  link.device_percent = 300;
  link.host_percent = 400;
  link.weights = link.optimizer = Tier::host;
  link.link = 15e6;

  LaneSetting compute;
  compute.name = "bound by compute";
  compute.host_percent = 400;
  compute.device_percent = 400;
  compute.weights = compute.optimizer = Tier::host;
  compute.micro_batches = 3;
  compute.link = 0;
  compute.compute_seconds = 20e-3;
  return {drive, shared, link, compute};
}

std::vector<LaneSetting> machine_matrix() {
  std::vector<LaneSetting> settings = {bound_settings().front()};
  for (const LaneSetting& setting : lane_matrix()) {
    if (setting.weights == Tier::nvme && setting.hidden == 192 && setting.nvme_both == 0) {
      settings.push_back(setting);
      settings.back().hidden = 768;
      settings.back().name = name_of(settings.back());
    }
  }
  settings.front().hidden = 1280;
  for (LaneSetting& setting : settings) {
    setting.nvme_read = setting.nvme_write = setting.link = 0;
    setting.compute_seconds = setting.cpu_seconds = 0;
  }
  return settings;
}

}  // namespace headrace::bench
