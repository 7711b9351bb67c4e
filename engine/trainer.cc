#include "engine/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/median.h"
#include "base/process.h"
#include "engine/metrics_log.h"
#include "engine/optimizer/loss_scaler.h"
#include "engine/optimizer/lr_schedule.h"
#include "engine/run_setup.h"
#include "model/presets.h"

namespace headrace::engine {

namespace {

using Clock = std::chrono::steady_clock;

/// After these the engine knows what its steps cost.
constexpr int64_t kStepsLearned = 2;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The run as it goes: one optimizer step after another, with what hangs on it.
class Training {
 public:
  Training(const TrainJob& job, const Settings& settings, const TrainObserver& observer)
      : job_(job),
        settings_(settings),
        observer_(observer),
        reader_(job.model_folder),
        data_(open_data()),
        options_(make_engine_options(settings, job.seq)),
        engine_(reader_.config(), options_),
        schedule_(make_lr_options(settings)),
        scaler_(make_loss_scaler_options(settings)),
        metrics_(prepare_output() + "/metrics.jsonl") {
    say(describe(engine_.plan(), options_.memory));
    say("host memory: " + engine_.host_description());
    if (!engine_.io_description().empty()) {
      say("nvme I/O: " + engine_.io_description());
    }
  }

  TrainSummary run(const std::atomic<bool>& stop) {
    const auto begin = Clock::now();
    load();
    for (int64_t step = 1; step <= job_.steps && !stop; ++step) {
      train_step(step);
    }
    summary_.interrupted = summary_.steps < job_.steps;
    if (job_.eval_steps > 0 && !stop) {
      evaluate(summary_.steps);
    }
    save();
    summary_.seconds = seconds_since(begin);
    summary_.host_budget = options_.memory.host_memory;
    summary_.device_high_water = engine_.device_high_water();
    summary_.host_high_water = engine_.host_high_water();
    summary_.gap = engine_.schedule_gap();
    if (!prediction_ratios_.empty()) {
      summary_.prediction_ratio = median(prediction_ratios_);
    }
    summary_.bytes_on_disk = engine_.bytes_on_disk();
    summary_.peak_rss = peak_resident_bytes();
    return summary_;
  }

 private:
  /// Checks model and data against each other before anything is allocated.
  std::unique_ptr<model::TokenData> open_data() const {
    model::check_sequence_length(reader_.config(), job_.seq);
    reader_.check(model::module_specs(reader_.config()));
    model::TokenDataOptions options;
    options.seq = job_.seq;
    options.vocab_size = reader_.config().vocab_size;
    options.seed = settings_.seed;
    options.validation_fraction = job_.validation_fraction;
    options.byte_level = model::is_byte_level(job_.model_folder);
    options.shuffle = job_.shuffle;
    auto data = model::TokenData::open(job_.data_path, options);
    if (data->training_sequences() == 0) {
      throw InputError(
          fmt::format("{} holds no training sequence of {} tokens", job_.data_path, job_.seq));
    }
    if (job_.eval_steps > 0 && data->validation_sequences() < settings_.batch.micro) {
      throw InputError(
          fmt::format("--eval-steps needs at least {} held-out sequences, but there are {}; raise "
                      "--validation-fraction",
                      settings_.batch.micro, data->validation_sequences()));
    }
    return data;
  }

  std::string prepare_output() const {
    std::error_code error;
    std::filesystem::create_directories(job_.output_folder, error);
    if (error) {
      throw IoError("cannot create the output folder",
                    {.path = job_.output_folder, .error_number = error.value()});
    }
    return job_.output_folder;
  }

  void load() {
    const int64_t total = total_elements();
    engine_.load(reader_, [&](Elements done) { progress("loading", done.count(), total); });
  }

  void save() {
    model::CheckpointWriter::Options options;
    options.dtype = settings_.dtype;
    options.max_shard_size = settings_.max_shard_size;
    options.copy_from = job_.model_folder;
    model::CheckpointWriter writer(job_.output_folder, reader_.config(),
                                   model::module_specs(reader_.config()), options);
    const int64_t total = total_elements();
    engine_.save(writer, [&](Elements done) { progress("saving", done.count(), total); });
    writer.finish();
  }

  int64_t total_elements() const {
    int64_t total = 0;
    for (const auto& module : engine_.plan().layout.modules) {
      total += module.spec.count.count();
    }
    return total;
  }

  std::vector<model::TokenBatch> next_batches() {
    std::vector<model::TokenBatch> batches;
    for (int64_t m = 0; m < settings_.batch.accumulation_steps; ++m) {
      batches.push_back(data_->training_batch(next_sequence_, settings_.batch.micro));
      next_sequence_ += settings_.batch.micro;
    }
    return batches;
  }

  void train_step(int64_t step) {
    const auto begin = Clock::now();
    const std::vector<model::TokenBatch> batches = next_batches();
    StepNumbers numbers;
    numbers.optimizer = settings_.optimizer;
    // A skipped step does not count for bias correction and learning rate, as in DeepSpeed.
    numbers.optimizer.step = updates_ + 1;
    numbers.optimizer.lr = schedule_.lr_at(updates_);
    numbers.loss_scale = scaler_.scale();
    numbers.gradient_clipping = settings_.gradient_clipping;
    numbers.check_finite = settings_.skip_nonfinite_steps;
    numbers.micro_batches = settings_.batch.accumulation_steps;

    StepReport report;
    report.engine = engine_.train_step(batches, numbers);
    if (!numbers.weights_finite) {
      log_message_once(LogLevel::warning, "weights finite",
                       fmt::format("step {}: some weights are not finite after the update; the "
                                   "training is lost from here: lower the learning rate, or set "
                                   "bf16.check_grad_overflow to skip such steps",
                                   step));
    }
    scaler_.update(numbers.skipped);
    report.step = step;
    for (const double loss : numbers.losses) {
      report.loss += loss / static_cast<double>(numbers.losses.size());
    }
    report.gradient_norm = numbers.gradient_norm;
    report.learning_rate = numbers.optimizer.lr;
    report.loss_scale = numbers.loss_scale;
    report.skipped = numbers.skipped;
    report.seconds = seconds_since(begin);
    const int64_t tokens = job_.seq * settings_.batch.micro * settings_.batch.accumulation_steps;
    report.tokens_per_second = static_cast<double>(tokens) / report.seconds;
    // Data, schedule and bookkeeping outside the schedule's run.
    TimeSplit& split = report.engine.run.split;
    split.other += report.seconds - split.total;
    split.total = report.seconds;
    finish_step(report, tokens);
  }

  void finish_step(const StepReport& report, int64_t tokens) {
    metrics_.write(report);
    if (observer_.step) {
      observer_.step(report, job_.steps);
    }
    if (report.step == 1) {
      summary_.first_loss = report.loss;
    }
    summary_.last_loss = report.loss;
    summary_.steps = report.step;
    summary_.tokens += tokens;
    summary_.split += report.engine.run.split;
    summary_.traffic += report.engine.traffic;
    summary_.speculative_steps += report.engine.speculation != Speculation::none ? 1 : 0;
    summary_.redone_steps += report.engine.speculation == Speculation::redone ? 1 : 0;
    if (report.step > kStepsLearned) {
      prediction_ratios_.push_back(report.seconds / report.engine.predicted_seconds);
    }
    if (report.skipped) {
      ++summary_.skipped_steps;
      ++skipped_in_a_row_;
      if (settings_.max_skipped_steps > 0 && skipped_in_a_row_ >= settings_.max_skipped_steps) {
        throw InputError(
            fmt::format("{} steps in a row had gradients that are not finite "
                        "(headrace.max_skipped_steps); lower the "
                        "learning rate, or check the data and the model",
                        skipped_in_a_row_));
      }
    } else {
      ++updates_;
      skipped_in_a_row_ = 0;
    }
    if (job_.eval_steps > 0 && report.step % job_.eval_steps == 0 && report.step != job_.steps) {
      evaluate(report.step);
    }
  }

  void evaluate(int64_t step) {
    const int64_t batches =
        std::min(job_.eval_batches, data_->validation_sequences() / settings_.batch.micro);
    double loss_sum = 0;
    int64_t counted = 0;
    for (int64_t i = 0; i < batches; ++i) {
      const auto batch = data_->validation_batch(i * settings_.batch.micro, settings_.batch.micro);
      loss_sum += engine_.evaluate(batch);
      counted += batch.counted_labels;
    }
    const double loss = loss_sum / static_cast<double>(std::max<int64_t>(counted, 1));
    summary_.validation_loss = loss;
    metrics_.write_evaluation(step, loss);
    if (observer_.evaluation) {
      observer_.evaluation(step, loss);
    }
  }

  void say(const std::string& text) const {
    if (observer_.message) {
      observer_.message(text);
    }
  }
  void progress(const std::string& what, int64_t done, int64_t total) const {
    if (observer_.progress) {
      observer_.progress(what, done, total);
    }
  }

  const TrainJob& job_;
  const Settings& settings_;
  const TrainObserver& observer_;
  model::CheckpointReader reader_;
  std::unique_ptr<model::TokenData> data_;
  EngineOptions options_;
  Engine engine_;
  LrSchedule schedule_;
  LossScaler scaler_;
  MetricsLog metrics_;
  TrainSummary summary_;
  int64_t next_sequence_ = 0;
  int64_t updates_ = 0;
  int64_t skipped_in_a_row_ = 0;
  std::vector<double> prediction_ratios_;
};

}  // namespace

TrainSummary train(const TrainJob& job, const Settings& settings, const TrainObserver& observer,
                   const std::atomic<bool>& stop) {
  return Training(job, settings, observer).run(stop);
}

}  // namespace headrace::engine
