#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/config/settings.h"
#include "engine/engine.h"

namespace headrace::engine {

/// Whether a training goes on with the run that its output folder or headrace.run_id names.
enum class ResumeMode : uint8_t { never, automatic, must };

/// Steps by number, both ends included.
struct StepRange {
  int64_t first = 1;
  int64_t last = 1;
};

/// What `headrace train` was asked to do, beside the configuration.
struct TrainJob {
  std::string model_folder;
  std::string data_path;
  std::string output_folder;
  int64_t steps = 100;
  int64_t seq = 512;
  int64_t eval_steps = 0;          ///< validation every so many steps; 0: never
  double validation_fraction = 0;  ///< share of the sequences held out
  int64_t eval_batches = 16;       ///< micro-batches of one validation, at most
  bool shuffle = true;
  ResumeMode resume = ResumeMode::automatic;
  std::set<std::string> allowed_changes;    ///< settings that may differ from the resumed run's
  std::string timeline;                     ///< file for --timeline; empty: none
  std::optional<StepRange> timeline_steps;  ///< empty: the fourth to the sixth that is run
};

/// One optimizer step as the user sees it.
struct StepReport {
  int64_t step = 0;  ///< 1-based
  double loss = 0;   ///< mean over the micro-batches
  double gradient_norm = 0;
  double learning_rate = 0;
  double loss_scale = 1;
  bool skipped = false;
  double seconds = 0;
  double tokens_per_second = 0;
  int64_t samples = 0;  ///< sequences that the run had seen before the step
  double next_learning_rate = 0;
  double next_loss_scale = 1;
  /// The time of the step's busiest lane, at the rates that are known, over the step's own; empty
  /// until rates are known.
  std::optional<double> share_of_bound;
  EngineReport engine;
};

struct TrainSummary {
  int64_t steps = 0;          ///< of the run, with those before it was resumed
  int64_t resumed_from = 0;   ///< step; 0: a new run
  std::string run_directory;  ///< empty: no state was kept
  int64_t skipped_steps = 0;
  int64_t speculative_steps = 0;  ///< updated during backward before the norm was known
  int64_t redone_steps = 0;       ///< of these, with updates that were done again
  bool interrupted = false;
  double first_loss = 0;
  double last_loss = 0;
  std::optional<double> validation_loss;
  double seconds = 0;
  int64_t tokens = 0;
  tiers::TierTraffic traffic;
  TimeSplit split;
  Bytes device_budget;  ///< in use, whoever chose it; 0: no device tier
  Bytes host_budget;
  Bytes device_high_water;
  Bytes host_high_water;
  Bytes peak_rss;
  Bytes bytes_on_disk;
  Bytes disk_capacity;   ///< of what holds the run; 0: not known
  Bytes written_by_run;  ///< to nvme, with what it wrote before it was resumed
  std::optional<ScheduleGap> gap;
  /// Median over the steps from the third on of measured / predicted seconds.
  std::optional<double> prediction_ratio;
};

/// How the trainer talks to whoever runs it. Every function may be empty.
struct TrainObserver {
  std::function<void(const std::string& text)> message;
  /// `what`: "loading", "saving"; elements done and in total.
  std::function<void(const std::string& what, int64_t done, int64_t total)> progress;
  std::function<void(const StepReport& report, int64_t steps)> step;
  std::function<void(int64_t step, double validation_loss)> evaluation;
  /// Called once the engine is there, with a function that any thread may call, and with an empty
  /// one before the engine goes.
  std::function<void(std::function<LiveGauges()> gauges)> engine;
};

/// Fine-tunes the model of `job` and writes the result to its output folder, with metrics.jsonl
/// and what `headrace report` reads (engine/report_files.h) beside it. Stops after the current step
/// when `stop` becomes true, and saves. Throws Error.
TrainSummary train(const TrainJob& job, const Settings& settings, const TrainObserver& observer,
                   const std::atomic<bool>& stop);

}  // namespace headrace::engine
