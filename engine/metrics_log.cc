#include "engine/metrics_log.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/rewrite_file.h"

namespace headrace::engine {

namespace {

/// JSON has no NaN; a loss that is not finite is written as null.
nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

template <class Value>
nlohmann::ordered_json to_object(const std::vector<std::pair<const char*, Value>>& parts) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : parts) {
    object[name] = value;
  }
  return object;
}

const char* name_of(Speculation speculation) {
  switch (speculation) {
    case Speculation::held:
      return "speculative";
    case Speculation::redone:
      return "redone";
    case Speculation::none:
      break;
  }
  return "final";
}

}  // namespace

std::vector<std::pair<const char*, double>> named_parts(const TimeSplit& split) {
  return {{"compute", split.compute},
          {"cpu_optimizer", split.cpu_optimizer},
          {"wait_nvme_read", split.nvme_read},
          {"wait_nvme_write", split.nvme_write},
          {"wait_host_to_device", split.host_to_device},
          {"wait_device_to_host", split.device_to_host},
          {"other", split.other},
          {"total", split.total}};
}

std::vector<std::pair<const char*, int64_t>> named_parts(const tiers::TierTraffic& traffic) {
  return {{"nvme_read", traffic.nvme_read},
          {"nvme_write", traffic.nvme_write},
          {"host_to_device", traffic.host_to_device},
          {"device_to_host", traffic.device_to_host},
          {"nvme_to_device", traffic.direct}};
}

MetricsLog::MetricsLog(const std::string& path, int64_t last_step) : path_(path) {
  constexpr const char* kCannotOpen = "cannot open the metrics file";
  if (last_step == 0) {
    later_.emplace(path, kCannotOpen);
    return;
  }
  keep_lines(last_step);
  file_.open(path, std::ios::app);
  if (!file_) {
    throw IoError(kCannotOpen, {.path = path, .error_number = errno});
  }
}

void MetricsLog::begin() {
  if (later_) {
    file_ = later_->begin();
    later_.reset();
  }
}

/// Rewrites the file: a killed run may have left lines of steps that were not committed, or half a
/// line.
void MetricsLog::keep_lines(int64_t last_step) {
  std::ifstream old(path_);
  rewrite_file(path_, "cannot rewrite the metrics file", [&](std::ostream& kept) {
    std::string line;
    while (std::getline(old, line)) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      const auto step = json.is_object() ? json.value("step", int64_t{0}) : 0;
      if (step < 1 || step > last_step) {
        continue;
      }
      kept << line << '\n';
      if (step == last_step) {
        (json.contains("validation_loss") ? has_evaluation_ : has_step_) = true;
      }
    }
  });
}

void MetricsLog::write_restored(int64_t step, const proto::StepRecord& record) {
  append(nlohmann::ordered_json{{"step", step},
                                {"loss", number(record.loss())},
                                {"gradient_norm", number(record.gradient_norm())},
                                {"learning_rate", record.learning_rate()},
                                {"loss_scale", record.loss_scale()},
                                {"skipped", record.skipped()}}
             .dump());
}

void MetricsLog::write(const StepReport& report) {
  const Binding binding = binding_of(report.engine.run);
  const StepPhases& phases = report.engine.phases;
  const nlohmann::ordered_json line = {
      {"step", report.step},
      {"loss", number(report.loss)},
      {"gradient_norm", number(report.gradient_norm)},
      {"learning_rate", report.learning_rate},
      {"loss_scale", report.loss_scale},
      {"skipped", report.skipped},
      {"updates", name_of(report.engine.speculation)},
      {"seconds", report.seconds},
      {"predicted_seconds", report.engine.predicted_seconds},
      {"tokens_per_second", report.tokens_per_second},
      {"binding", scheduler::to_string(binding.lane)},
      {"binding_share", binding.share},
      {"bound_seconds", report.engine.bound.seconds},
      {"bytes", to_object(named_parts(report.engine.traffic))},
      {"planned_bytes", to_object(named_parts(report.engine.planned))},
      {"seconds_by_cause", to_object(named_parts(report.engine.run.split))},
      {"seconds_by_phase",
       {{"forward", phases.forward}, {"backward", phases.backward}, {"step", phases.step}}}};
  append(line.dump());
}

void MetricsLog::write_evaluation(int64_t step, double validation_loss) {
  append(
      nlohmann::ordered_json{{"step", step}, {"validation_loss", number(validation_loss)}}.dump());
}

void MetricsLog::append(const std::string& line) {
  begin();
  file_ << line << '\n' << std::flush;
  if (!file_) {
    throw IoError("cannot write the metrics file", {.path = path_, .error_number = errno});
  }
}

Binding binding_of(const RunReport& run) {
  Binding binding;
  for (size_t i = 0; i < run.busy.size(); ++i) {
    if (run.busy[i] > binding.share) {
      binding = {static_cast<scheduler::Lane>(i), run.busy[i]};
    }
  }
  if (run.split.total > 0) {
    binding.share /= run.split.total;
  }
  return binding;
}

}  // namespace headrace::engine
