#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "engine/run_setup.h"
#include "engine/trace_recording.h"
#include "engine/trainer.h"
#include "model/checkpoint.h"
#include "tools/setting_options.h"
#include "tools/trace_commands.h"

namespace headrace::tools {

namespace {

struct Arguments {
  std::string model;
  SettingOptions settings;
  int64_t seq = engine::TrainJob().seq;
  int64_t steps = engine::TrainJob().steps;
  engine::RecordedStep step = engine::RecordedStep::steady;
  int rounds = 4;
  std::string output;
};

void run(Arguments arguments) {
  const model::ModelConfig config = model::load_model_config(arguments.model);
  const engine::Settings settings = arguments.settings.resolve(config, arguments.steps);
  scheduler::SavedTrace trace =
      engine::record_trace(config, engine::make_engine_options(settings, arguments.seq),
                           arguments.step, arguments.rounds);
  trace.description =
      fmt::format("{}, {}, micro-batch {} x {} tokens, accumulation {}", arguments.model,
                  arguments.settings.config(), settings.batch.micro, arguments.seq,
                  settings.batch.accumulation_steps);
  engine::save_trace(trace, arguments.output);
  fmt::print("{}: {} step, {} operations, {} actions, predicted {}\n", arguments.output, trace.step,
             trace.trace.operations.size(), trace.last().schedule.actions.size(),
             format_duration(trace.last().predicted_seconds));
}

}  // namespace

void add_trace_record(Command& trace) {
  auto arguments = std::make_shared<Arguments>();
  Command* command = trace.add_subcommand(
      "record", "Plan and compile a step as train would, with the durations it assumes at first");
  command
      ->add_option("--model", arguments->model, "Hugging Face model folder; config.json is enough")
      ->required();
  arguments->settings.add_to(*command);
  command->add_option("--seq-len", arguments->seq, "Tokens per sequence")
      ->check_positive()
      ->capture_default_str();
  command->add_option("--steps", arguments->steps, "Of the training, for an \"auto\" scheduler")
      ->check_positive()
      ->capture_default_str();
  static const std::map<std::string, engine::RecordedStep> steps{
      {"training", engine::RecordedStep::training},
      {"speculative", engine::RecordedStep::speculative},
      {"redo", engine::RecordedStep::redo},
      {"evaluation", engine::RecordedStep::evaluation}};
  command
      ->add_choice("--step", arguments->step, steps,
                   "Which trace; standard: speculative where the plan has it, else training")
      ->option_text("training|speculative|redo|evaluation");
  command
      ->add_option("--rounds", arguments->rounds,
                   "Steps in a row, each from what the one before leaves in memory; the first and "
                   "the last are kept")
      ->check_range(1, 100)
      ->capture_default_str();
  command->add_option("--output", arguments->output, "The trace file")->required();
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
