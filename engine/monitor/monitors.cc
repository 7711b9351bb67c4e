#include "engine/monitor/monitors.h"

#include "base/error.h"
#include "base/log.h"
#include "engine/metrics_log.h"
#include "engine/monitor/csv_files.h"
#include "engine/monitor/event_file.h"

namespace headrace::engine {

namespace {

constexpr const char* kLossTag = "Train/Samples/train_loss";
constexpr const char* kValidationTag = "Headrace/validation_loss";

std::string folder_of(const MonitorSettings& settings) {
  return settings.output_path.empty() ? settings.job_name
                                      : settings.output_path + "/" + settings.job_name;
}

/// The loss of a step stands before it, the rest of it after it.
KeepScalar make_keep(const std::optional<ResumedAt>& resumed) {
  if (!resumed) {
    return {};
  }
  return [at = *resumed](const std::string& tag, int64_t samples) {
    const bool is_before = tag == kLossTag || (tag == kValidationTag && !at.has_evaluation);
    return is_before ? samples < at.samples : samples <= at.samples;
  };
}

}  // namespace

std::vector<Scalar> scalars_of(const StepReport& report, const Settings& settings) {
  const int64_t after = report.samples + settings.batch.train;
  std::vector<Scalar> scalars = {{kLossTag, report.loss, report.samples},
                                 {"Train/Samples/lr", report.next_learning_rate, after}};
  const auto add = [&](const std::string& tag, double value) {
    scalars.push_back({tag, value, after});
  };
  if (settings.dtype == DType::f16) {
    add("Train/Samples/loss_scale", report.next_loss_scale);
  }
  if (settings.wall_clock_breakdown) {
    constexpr double kMillisecond = 1e-3;
    const StepPhases& phases = report.engine.phases;
    add("Train/Samples/elapsed_time_ms_forward", phases.forward / kMillisecond);
    add("Train/Samples/elapsed_time_ms_backward", phases.backward / kMillisecond);
    // One rank reduces nothing: backward is all inner, and the reduction takes no time.
    add("Train/Samples/elapsed_time_ms_backward_inner", phases.backward / kMillisecond);
    add("Train/Samples/elapsed_time_ms_backward_allreduce", 0);
    add("Train/Samples/elapsed_time_ms_step", phases.step / kMillisecond);
  }
  add("Headrace/gradient_norm", report.gradient_norm);
  add("Headrace/tokens_per_second", report.tokens_per_second);
  add("Headrace/seconds", report.seconds);
  add("Headrace/predicted_seconds", report.engine.predicted_seconds);
  if (report.share_of_bound) {
    add("Headrace/share_of_bound", *report.share_of_bound);
  }
  for (const auto& [name, seconds] : named_parts(report.engine.run.split)) {
    add(std::string("Headrace/seconds_by_cause/") + name, seconds);
  }
  for (const auto& [name, bytes] : named_parts(report.engine.traffic)) {
    add(std::string("Headrace/bytes/") + name, static_cast<double>(bytes));
  }
  return scalars;
}

Monitors::Monitors(const Settings& settings, const std::string& run,
                   const std::optional<ResumedAt>& resumed)
    : settings_(settings) {
  const KeepScalar keep = make_keep(resumed);
  if (settings.tensorboard.enabled) {
    sinks_.push_back(
        {"tensorboard", std::make_unique<TensorBoardSink>(folder_of(settings.tensorboard), run,
                                                          keep, resumed ? resumed->samples : 0)});
  }
  if (settings.csv_monitor.enabled) {
    sinks_.push_back(
        {"csv_monitor", std::make_unique<CsvSink>(folder_of(settings.csv_monitor), run, keep)});
  }
}

void Monitors::write(const StepReport& report) {
  if (!sinks_.empty()) {
    write(scalars_of(report, settings_));
  }
}

void Monitors::write_evaluation(int64_t samples, double validation_loss) {
  write({{kValidationTag, validation_loss, samples}});
}

void Monitors::write(const std::vector<Scalar>& scalars) {
  std::erase_if(sinks_, [&](const Sink& sink) {
    try {
      sink.sink->write(scalars);
      return false;
    } catch (const IoError& error) {
      log_warning("{}: no more reports of this run: {}", sink.name, error.what());
      return true;
    }
  });
}

}  // namespace headrace::engine
