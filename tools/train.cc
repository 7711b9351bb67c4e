#include <fmt/format.h>

#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/trainer.h"
#include "model/checkpoint.h"
#include "tools/command.h"
#include "tools/progress.h"
#include "tools/setting_options.h"
#include "tools/step_lines.h"
#include "tools/step_range.h"
#include "tools/text.h"
#include "tools/watch.h"

namespace headrace::tools {

namespace {

struct Arguments {
  engine::TrainJob job;
  SettingOptions settings;
  bool no_shuffle = false;
  std::string timeline_steps;
  bool watch = false;
};

/// The schedule beside the least that any could do.
void print_gap(const engine::ScheduleGap& gap) {
  fmt::print("  schedule         per step: nvme {}, host-device {}, predicted {} (bound {}, {})\n",
             with_bound(gap.nvme, gap.nvme_bound), with_bound(gap.link, gap.link_bound),
             format_duration(gap.seconds), format_duration(gap.seconds_bound),
             over_bound(gap.seconds, gap.seconds_bound));
}

/// Prints what the trainer reports.
class Console {
 public:
  engine::TrainObserver observer() {
    engine::TrainObserver observer;
    observer.message = [](const std::string& text) { fmt::print("{}\n", text); };
    observer.progress = [this](const std::string& what, int64_t done, int64_t total) {
      if (what != title_) {
        progress_.reset();
        progress_ = std::make_unique<Progress>(what, total);
        title_ = what;
      }
      progress_->update(done);
    };
    observer.step = [this](const engine::StepReport& report, int64_t steps) {
      print_step(report, steps);
    };
    observer.evaluation = [this](int64_t step, double loss) {
      clear_bar();
      fmt::print("step {:>5}  validation loss {:.4f}\n", step, loss);
    };
    return observer;
  }

  void set_steps_per_print(int64_t steps) { steps_per_print_ = std::max<int64_t>(steps, 1); }
  void set_wall_clock_breakdown(bool on) { wall_clock_breakdown_ = on; }
  void set_memory_breakdown(bool on) { memory_breakdown_ = on; }
  void finish() { progress_.reset(); }

 private:
  void clear_bar() {
    if (progress_ != nullptr) {
      progress_->clear();
    }
    std::fflush(stdout);
  }

  void print_step(const engine::StepReport& report, int64_t steps) {
    if (title_ != "training") {
      progress_.reset();
      progress_ = std::make_unique<Progress>("training", steps);
      title_ = "training";
    }
    const bool is_first = std::exchange(is_first_, false);
    if (is_first || report.step == steps || report.step % steps_per_print_ == 0) {
      clear_bar();
      fmt::print("{}\n", step_line(report));
      if (wall_clock_breakdown_) {
        fmt::print("{}\n{}\n", phases_line(report.engine.phases),
                   split_line(report.engine.run.split));
      }
      if (memory_breakdown_) {
        fmt::print("{}\n", memory_lines(report.engine.memory));
      }
      std::fflush(stdout);
    }
    progress_->update(report.step);
  }

  std::unique_ptr<Progress> progress_;
  std::string title_;
  int64_t steps_per_print_ = 1;
  bool is_first_ = true;
  bool wall_clock_breakdown_ = false;
  bool memory_breakdown_ = false;
};

/// What this pace does to the drives: they are rated in writes of their whole size per day.
void print_wear(const engine::TrainSummary& summary) {
  const int64_t steps = summary.steps - summary.resumed_from;
  if (summary.run_directory.empty() || steps == 0 || summary.traffic.nvme_write == 0 ||
      summary.disk_capacity == Bytes(0)) {
    return;
  }
  constexpr double kSecondsPerDay = 86400;
  const double per_day =
      static_cast<double>(summary.traffic.nvme_write) / summary.seconds * kSecondsPerDay;
  fmt::print(
      "  nvme writes      {} per step, {} per day at this pace: {:.2g} drive writes per day "
      "of {}; {} by the run so far\n",
      format_bytes(Bytes(summary.traffic.nvme_write / steps)),
      format_bytes(Bytes(static_cast<int64_t>(per_day))),
      per_day / static_cast<double>(summary.disk_capacity.count()),
      format_bytes(summary.disk_capacity), format_bytes(summary.written_by_run));
}

void print_summary(const engine::TrainSummary& summary) {
  fmt::print("Summary\n");
  fmt::print(
      "  steps            {}{} ({} skipped), {} tokens in {}\n", summary.steps,
      summary.resumed_from > 0 ? fmt::format(", resumed after {}", summary.resumed_from) : "",
      summary.skipped_steps, format_count(static_cast<double>(summary.tokens)),
      format_duration(summary.seconds));
  fmt::print(
      "  loss             {:.4f} -> {:.4f}{}\n", summary.first_loss, summary.last_loss,
      summary.validation_loss ? fmt::format(", validation {:.4f}", *summary.validation_loss) : "");
  const auto bytes = [](int64_t count) { return format_bytes(Bytes(count)); };
  fmt::print(
      "  tier traffic     nvme read {}, nvme write {}, host to device {}, device to host {}\n",
      bytes(summary.traffic.nvme_read), bytes(summary.traffic.nvme_write),
      bytes(summary.traffic.host_to_device), bytes(summary.traffic.device_to_host));
  fmt::print("{}\n", split_line(summary.split));
  if (summary.speculative_steps > 0) {
    fmt::print("  overlap          {} of {} steps updated during backward, {} of them done again\n",
               summary.speculative_steps, summary.steps, summary.redone_steps);
  }
  if (summary.gap) {
    print_gap(*summary.gap);
  }
  if (summary.prediction_ratio) {
    fmt::print("  prediction       steps took {:.3f} of the time predicted before each (median)\n",
               *summary.prediction_ratio);
  }
  const Bytes budget = summary.device_budget + summary.host_budget;
  fmt::print(
      "  peak memory      {} resident; budgets {} (device {}, host {}), arenas used {} and {}\n",
      format_bytes(summary.peak_rss), format_bytes(budget), format_bytes(summary.device_budget),
      format_bytes(summary.host_budget), format_bytes(summary.device_high_water),
      format_bytes(summary.host_high_water));
  fmt::print("  on nvme          {}\n", format_bytes(summary.bytes_on_disk));
  print_wear(summary);
}

void run(Arguments arguments) {
  const model::CheckpointReader reader(arguments.job.model_folder);
  arguments.job.shuffle = !arguments.no_shuffle;
  if (!arguments.timeline_steps.empty()) {
    arguments.job.timeline_steps = parse_step_range("--timeline-steps", arguments.timeline_steps);
  }
  const engine::Settings settings =
      arguments.settings.resolve(reader.config(), arguments.job.steps);

  watch_signals();
  Console console;
  console.set_steps_per_print(settings.steps_per_print.value_or(1));
  console.set_wall_clock_breakdown(settings.wall_clock_breakdown);
  console.set_memory_breakdown(settings.memory_breakdown);
  const bool is_watched = arguments.watch && Watch::is_possible();
  Watch watch;
  const engine::TrainObserver observer = is_watched ? watch.observer() : console.observer();
  const engine::TrainSummary summary =
      engine::train(arguments.job, settings, observer, stop_requested());
  console.finish();
  print_summary(summary);
  fmt::print("  model            {}\n", arguments.job.output_folder);
  if (!summary.run_directory.empty()) {
    fmt::print("  run              {}\n", summary.run_directory);
  }
  if (summary.interrupted) {
    throw InterruptedError(
        fmt::format("stopped after step {} of {}; the state is saved: the same command goes on "
                    "from there. The weights so far are a model in {}",
                    summary.steps, arguments.job.steps, arguments.job.output_folder));
  }
}

void add_job_options(Command& command, Arguments& arguments) {
  engine::TrainJob& job = arguments.job;
  command.add_option("--model", job.model_folder, "Hugging Face model folder")->required();
  command
      .add_option("--data", job.data_path,
                  "Token file (.bin, .safetensors), or plain text for byte-level models")
      ->required();
  command
      .add_option("--output", job.output_folder, "Folder for the trained model and metrics.jsonl")
      ->required();
  command.add_option("--steps", job.steps, "Optimizer steps")
      ->check_positive()
      ->capture_default_str();
  command.add_option("--seq-len", job.seq, "Tokens per sequence")
      ->check_positive()
      ->capture_default_str();
  command
      .add_option("--eval-steps", job.eval_steps, "Print the validation loss every so many steps")
      ->check_not_negative();
  command
      .add_option("--validation-fraction", job.validation_fraction, "Share of the data held out")
      ->check_range(0.0, 0.9);
  static const std::map<std::string, engine::ResumeMode> modes{
      {"never", engine::ResumeMode::never},
      {"auto", engine::ResumeMode::automatic},
      {"must", engine::ResumeMode::must}};
  command
      .add_choice("--resume", job.resume, modes,
                  "Go on with the run that the output folder or headrace.run_id names: never, auto "
                  "(where there is one), must")
      ->option_text("never|auto|must");
  command
      .add_option(
          "--allow-change", job.allowed_changes,
          "Settings that may differ from those of the resumed run, though its numbers change")
      ->delimiter(',')
      ->option_text("NAME,...");
  command
      .add_option("--timeline", job.timeline,
                  "Write steps to this file as a timeline for ui.perfetto.dev and chrome://tracing")
      ->option_text("FILE");
  command
      .add_option("--timeline-steps", arguments.timeline_steps,
                  "Which steps: 4 or 3-5; by default the fourth to the sixth that are run")
      ->needs("--timeline")
      ->option_text("FIRST-LAST");
  command.add_flag("--no-shuffle", arguments.no_shuffle,
                   "Take the sequences in the order of the file");
  command.add_flag("--watch", arguments.watch,
                   "A live view of lanes, tiers and pace, where stdout is a terminal");
}

}  // namespace

void add_train(Command& app) {
  auto arguments = std::make_shared<Arguments>();
  Command* command = app.add_subcommand("train", "Fine-tune a model through the tiers");
  add_job_options(*command, *arguments);
  arguments->settings.add_to(*command);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
