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
#include "base/seconds.h"
#include "engine/folder_lock.h"
#include "engine/learned_costs.h"
#include "engine/metrics_log.h"
#include "engine/monitor/monitors.h"
#include "engine/optimizer/loss_scaler.h"
#include "engine/optimizer/lr_schedule.h"
#include "engine/report_files.h"
#include "engine/resume.h"
#include "engine/run_setup.h"
#include "engine/run_state.h"
#include "model/checkpoint_file.h"
#include "model/presets.h"
#include "tiers/topology.h"

namespace headrace::engine {

namespace {

using Clock = std::chrono::steady_clock;

/// Lets the observer look into the engine while it lives.
class ShownEngine {
 public:
  ShownEngine(const TrainObserver& observer, const Engine& engine) : observer_(observer) {
    if (observer_.engine) {
      observer_.engine([&engine] { return engine.gauges(); });
    }
  }
  ShownEngine(const ShownEngine&) = delete;
  ShownEngine& operator=(const ShownEngine&) = delete;
  ~ShownEngine() {
    if (observer_.engine) {
      observer_.engine({});
    }
  }

 private:
  const TrainObserver& observer_;
};

/// The run as it goes: one optimizer step after another, with what hangs on it.
class Training {
 public:
  Training(const TrainJob& job, const Settings& settings, const TrainObserver& observer)
      : job_(job),
        settings_(settings),
        observer_(observer),
        reader_(job.model_folder),
        data_(open_data()),
        output_(job.output_folder),
        numeric_settings_(numeric_settings(job, settings, reader_.config())),
        found_(find_checked_run()),
        options_(make_options()),
        engine_(reader_.config(), options_),
        output_lock_(output_.path()),
        schedule_(make_lr_options(settings)),
        scaler_(make_loss_scaler_options(settings)),
        metrics_(output_.file(kMetricsFile), resumes() ? found_->state->step() : 0),
        monitors_(settings, run_name(), resumed_at()),
        report_files_(job, {&reader_.config(), &options_, &engine_, &numeric_settings_}) {
    say(describe(engine_.plan(), options_.memory));
    if (options_.keep_state) {
      write_run_pointer(output_.path(), engine_.run_directories());
      summary_.run_directory = engine_.run_directories().front();
    }
    say("host memory: " + engine_.host_description());
    if (!engine_.io_description().empty()) {
      say("nvme I/O: " + engine_.io_description());
    }
    if (!engine_.direct_description().empty()) {
      say("nvme to device: " + engine_.direct_description());
    }
    if (!engine_.attention_description().empty()) {
      say("attention: " + engine_.attention_description());
    }
    warn_of_little_space();
  }

  TrainSummary run(const std::atomic<bool>& stop) {
    const auto begin = Clock::now();
    const ShownEngine shown(observer_, engine_);
    resumes() ? resume() : load();
    report_files_.begin(position_.step());
    for (int64_t step = position_.step() + 1; step <= job_.steps && !stop; ++step) {
      train_step(step);
    }
    summary_.interrupted = summary_.steps < job_.steps;
    checkpoint();
    const bool is_evaluated = summary_.resumed_from == summary_.steps && metrics_.has_evaluation();
    if (job_.eval_steps > 0 && !stop && !is_evaluated) {
      evaluate(summary_.steps);
    }
    save();
    if (options_.keep_state && !summary_.interrupted && !settings_.keeping.keep_run) {
      engine_.state_store()->remove_on_close();
      summary_.run_directory.clear();
    }
    summary_.seconds = seconds_since(begin);
    summary_.device_budget = options_.memory.device_memory.value_or(Bytes(0));
    summary_.host_budget = options_.memory.host_memory;
    summary_.disk_capacity = tiers::disk_capacity(options_.nvme_paths);
    summary_.device_high_water = engine_.device_high_water();
    summary_.host_high_water = engine_.host_high_water();
    summary_.gap = engine_.schedule_gap();
    if (!prediction_ratios_.empty()) {
      summary_.prediction_ratio = median(prediction_ratios_);
    }
    summary_.bytes_on_disk = engine_.bytes_on_disk();
    summary_.written_by_run = Bytes(position_.nvme_bytes_written());
    summary_.peak_rss = peak_resident_bytes();
    report_files_.end(summary_);
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
    options.document_end = settings_.document_end;
    options.window = reader_.config().sliding_window;
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

  bool resumes() const { return found_ && found_->state; }

  /// What stays the same when the run is resumed; empty: it cannot be.
  std::string run_name() const {
    return options_.keep_state
               ? std::filesystem::path(engine_.run_directories().front()).filename().string()
               : "";
  }
  std::optional<ResumedAt> resumed_at() const {
    return resumes() ? std::optional<ResumedAt>(
                           {found_->state->next_sequence(), metrics_.has_evaluation()})
                     : std::nullopt;
  }

  std::optional<FoundRun> find_checked_run() const {
    std::optional<FoundRun> found = find_run(job_, settings_);
    std::map<std::string, std::string> stored;  // nothing in a new run
    if (found && found->state) {
      stored.insert(found->state->settings().begin(), found->state->settings().end());
    }
    check_settings(stored, numeric_settings_, job_.allowed_changes,
                   found ? found->directory : job_.output_folder);
    return found;
  }

  EngineOptions make_options() const {
    EngineOptions options = make_engine_options(settings_, job_.seq);
    set_run(options, job_, settings_, found_);
    check_state_room(options, settings_, reader_.config());
    return options;
  }

  void load() {
    metrics_.begin();
    const int64_t total = total_elements();
    describe_run();
    engine_.load(
        reader_, [&](Elements done) { progress("loading", done.count(), total); },
        position_.SerializeAsString());
  }

  /// What does not change from step to step.
  void describe_run() {
    position_.mutable_settings()->clear();
    position_.mutable_settings()->insert(numeric_settings_.begin(), numeric_settings_.end());
    *position_.mutable_layout() =
        describe(engine_.plan().layout, optimizer_name(settings_.optimizer.kind));
    position_.set_model_config_json(model::to_config_json(reader_.config(), settings_.dtype));
    position_.set_model_folder(std::filesystem::absolute(job_.model_folder).lexically_normal());
    note_loss_scale();
  }

  void note_loss_scale() {
    const LossScalerState& state = scaler_.state();
    proto::LossScaler& to = *position_.mutable_loss_scaler();
    to.set_scale(state.scale);
    to.set_iteration(state.iteration);
    to.set_last_overflow_iteration(state.last_overflow_iteration);
    to.set_hysteresis_left(state.hysteresis_left);
  }

  /// Goes on from the committed generation.
  void resume() {
    position_ = *found_->state;
    const proto::StateLayout stored = position_.layout();
    const proto::LossScaler& scaler = position_.loss_scaler();
    if (position_.settings_size() > 0 && !job_.allowed_changes.contains("fp16.dynamic")) {
      scaler_.restore({scaler.scale(), scaler.iteration(), scaler.last_overflow_iteration(),
                       scaler.hysteresis_left()});
    }
    describe_run();
    say(fmt::format("going on after step {} of the run in {}", position_.step(),
                    found_->directory));
    engine_.resume(stored, optimizer_name(settings_.optimizer.kind), position_.SerializeAsString(),
                   [&](int64_t done, int64_t total) { progress("resuming", done, total); });
    checkpointed_step_ = position_.step();
    summary_.resumed_from = position_.step();
    summary_.steps = position_.step();
    summary_.first_loss = position_.first_loss();
    summary_.last_loss = position_.last_step().loss();
    if (!metrics_.has_step() && position_.step() > 0) {
      metrics_.write_restored(position_.step(), position_.last_step());
    }
    if (is_evaluation_due(position_.step()) && !metrics_.has_evaluation()) {
      evaluate(position_.step());
    }
    if (is_save_point(position_.step())) {
      take_snapshot();
    }
  }

  bool is_save_point(int64_t step) const {
    const int64_t interval = settings_.keeping.save_interval;
    return interval > 0 && step > 0 && step % interval == 0;
  }
  bool is_evaluation_due(int64_t step) const {
    return job_.eval_steps > 0 && step > 0 && step % job_.eval_steps == 0 && step != job_.steps;
  }

  /// Brings state that lives in memory to the disk, where the last step did not.
  void checkpoint() {
    if (!engine_.commits_every_step() && checkpointed_step_ != position_.step()) {
      engine_.checkpoint(position_.SerializeAsString());
      checkpointed_step_ = position_.step();
    }
  }

  /// The training is worth more than a snapshot: one for which there is no room is left out.
  void take_snapshot() {
    try {
      engine_.state_store()->take_snapshot(true, settings_.keeping.keep_last);
    } catch (const CapacityError& error) {
      log_warning("step {}: no snapshot was taken: {}", position_.step(), error.what());
    }
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

  /// The model is written at the end, when it is late to learn that there is no room for it.
  void warn_of_little_space() const {
    const Bytes size = bytes_for(Elements(total_elements()), settings_.dtype);
    const Bytes room = tiers::free_space(output_.path());
    if (room < size) {
      log_warning(
          "the trained model will take {} in {}, where {} are free: make room before the "
          "training ends, or name a folder on another disk with --output",
          format_bytes(size), output_.path(), format_bytes(room));
    }
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
      batches.push_back(data_->training_batch(position_.next_sequence(), settings_.batch.micro));
      position_.set_next_sequence(position_.next_sequence() + settings_.batch.micro);
    }
    return batches;
  }

  void train_step(int64_t step) {
    const auto begin = Clock::now();
    const int64_t samples = position_.next_sequence();
    const std::vector<model::TokenBatch> batches = next_batches();
    StepNumbers numbers;
    numbers.optimizer = settings_.optimizer;
    numbers.optimizer.seed = settings_.seed;
    // A skipped step does not count for bias correction and learning rate, as in DeepSpeed.
    numbers.optimizer.step = position_.updates() + 1;
    numbers.optimizer.lr = schedule_.lr_at(position_.updates());
    numbers.loss_scale = scaler_.scale();
    numbers.gradient_clipping = settings_.gradient_clipping;
    numbers.check_finite = settings_.skip_nonfinite_steps;
    numbers.micro_batches = settings_.batch.accumulation_steps;
    numbers.mean_over_step = settings_.document_end.has_value();

    std::optional<TimelineRecorder> recorder = report_files_.record(step, begin);
    StepReport report;
    report.step = step;
    report.samples = samples;
    report.engine = engine_.train_step(
        batches, numbers, [&] { return note_step(report, numbers); },
        recorder ? &*recorder : nullptr);
    if (!numbers.weights_finite()) {
      log_message_once(LogLevel::warning, "weights finite",
                       fmt::format("step {}: some weights are not finite after the update; the "
                                   "training is lost from here: lower the learning rate, or set "
                                   "bf16.check_grad_overflow to skip such steps",
                                   step));
    }
    report.seconds = seconds_since(begin);
    report.tokens_per_second = static_cast<double>(step_tokens()) / report.seconds;
    // Data, schedule and bookkeeping outside the schedule's run.
    TimeSplit& split = report.engine.run.split;
    split.other += report.seconds - split.total;
    report.engine.phases.step += report.seconds - split.total;
    split.total = report.seconds;
    if (++steps_here_ > kStepsToLearn) {
      report.share_of_bound = report.engine.bound.seconds / report.seconds;
    }
    report_files_.end_step(report, std::move(recorder));
    finish_step(report);
  }

  int64_t step_tokens() const {
    return job_.seq * settings_.batch.micro * settings_.batch.accumulation_steps;
  }

  /// Takes the step into the run's position, before it is committed with it.
  std::string note_step(StepReport& report, const StepNumbers& numbers) {
    scaler_.update(numbers.skipped);
    for (const double loss : numbers.losses) {
      report.loss += loss / static_cast<double>(numbers.losses.size());
    }
    report.gradient_norm = numbers.gradient_norm;
    report.learning_rate = numbers.optimizer.lr;
    report.loss_scale = numbers.loss_scale;
    report.skipped = numbers.skipped;

    position_.set_step(report.step);
    position_.set_updates(position_.updates() + (numbers.skipped ? 0 : 1));
    position_.set_skipped_in_a_row(numbers.skipped ? position_.skipped_in_a_row() + 1 : 0);
    position_.set_tokens(position_.tokens() + step_tokens());
    if (report.step == 1) {
      position_.set_first_loss(report.loss);
    }
    proto::StepRecord& record = *position_.mutable_last_step();
    record.set_loss(report.loss);
    record.set_gradient_norm(report.gradient_norm);
    record.set_learning_rate(report.learning_rate);
    record.set_loss_scale(report.loss_scale);
    record.set_skipped(report.skipped);
    report.next_learning_rate = schedule_.lr_at(position_.updates());
    report.next_loss_scale = scaler_.scale();
    note_loss_scale();
    return position_.SerializeAsString();
  }

  void finish_step(const StepReport& report) {
    metrics_.write(report);
    monitors_.write(report);
    if (observer_.step) {
      observer_.step(report, job_.steps);
    }
    if (report.step == 1) {
      summary_.first_loss = report.loss;
    }
    summary_.last_loss = report.loss;
    summary_.steps = report.step;
    summary_.tokens += step_tokens();
    summary_.skipped_steps += report.skipped ? 1 : 0;
    summary_.split += report.engine.run.split;
    summary_.traffic += report.engine.traffic;
    summary_.speculative_steps += report.engine.speculation != Speculation::none ? 1 : 0;
    summary_.redone_steps += report.engine.speculation == Speculation::redone ? 1 : 0;
    if (steps_here_ > kStepsToLearn) {
      prediction_ratios_.push_back(report.seconds / report.engine.predicted_seconds);
    }
    // Goes into the next commit: this one is done.
    position_.set_nvme_bytes_written(position_.nvme_bytes_written() +
                                     report.engine.traffic.nvme_write);
    const int64_t skipped = position_.skipped_in_a_row();
    if (settings_.max_skipped_steps > 0 && skipped >= settings_.max_skipped_steps) {
      throw InputError(
          fmt::format("{} steps in a row had gradients that are not finite "
                      "(headrace.max_skipped_steps); lower the "
                      "learning rate, or check the data and the model",
                      skipped));
    }
    if (is_save_point(report.step)) {
      checkpoint();
      take_snapshot();
    }
    if (is_evaluation_due(report.step)) {
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
    monitors_.write_evaluation(position_.next_sequence(), loss);
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
  model::OutputFolder output_;
  std::map<std::string, std::string> numeric_settings_;
  std::optional<FoundRun> found_;
  EngineOptions options_;
  Engine engine_;
  FolderLock output_lock_;
  LrSchedule schedule_;
  LossScaler scaler_;
  MetricsLog metrics_;
  Monitors monitors_;
  ReportFiles report_files_;
  int64_t steps_here_ = 0;  ///< of this process
  TrainSummary summary_;
  std::vector<double> prediction_ratios_;
  proto::RunState position_;        ///< after the last step
  int64_t checkpointed_step_ = -1;  ///< the last one that the store has, where not all are
};

}  // namespace

TrainSummary train(const TrainJob& job, const Settings& settings, const TrainObserver& observer,
                   const std::atomic<bool>& stop) {
  model::check_is_elsewhere(job.output_folder, job.model_folder);
  return Training(job, settings, observer).run(stop);
}

}  // namespace headrace::engine
