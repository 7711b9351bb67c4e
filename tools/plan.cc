#include "tools/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "aio/profile_catalog.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/gpu_options.h"
#include "engine/run_setup.h"
#include "engine/trainer.h"
#include "model/shapes.h"
#include "tools/command.h"
#include "tools/plan_sweep.h"
#include "tools/setting_options.h"

namespace headrace::tools {

namespace {

/// Rates that the command line gives; 0: not given.
struct GivenRates {
  double compute = 0;
  std::string cpu;
  std::string link;
  std::string nvme_read;
  std::string nvme_write;
};

struct Arguments {
  std::string model;
  SettingOptions settings;
  int64_t seq = engine::TrainJob().seq;
  int64_t steps = engine::TrainJob().steps;
  std::vector<std::string> hardware;
  GivenRates rates;
  std::optional<double> tokens;
  std::vector<std::string> sweep;
  bool no_advice = false;
  std::string json;
};

void use_given_rates(const GivenRates& given, engine::Hardware& hardware) {
  const auto set = [](engine::Rate& rate, double value) {
    if (value > 0) {
      rate = {value, "given"};
    }
  };
  const auto bytes = [](const std::string& text, const char* flag) {
    if (text.empty()) {
      return 0.0;
    }
    const auto value = static_cast<double>(parse_bytes(text, flag).count());
    if (value <= 0) {
      throw UsageError(fmt::format("{}: a rate must be above 0", flag));
    }
    return value;
  };
  set(hardware.compute, given.compute);
  if (given.compute > 0) {
    hardware.compute_fp8 = {};
  }
  set(hardware.cpu_memory, bytes(given.cpu, "--cpu-rate"));
  set(hardware.host_to_device, bytes(given.link, "--link-rate"));
  set(hardware.device_to_host, bytes(given.link, "--link-rate"));
  set(hardware.nvme_read, bytes(given.nvme_read, "--nvme-read-rate"));
  set(hardware.nvme_write, bytes(given.nvme_write, "--nvme-write-rate"));
  if (!given.nvme_read.empty() || !given.nvme_write.empty()) {
    hardware.nvme_both = {};  // they are meant as rates while both go on
  }
}

/// A GPU that was named brings its memory, less what a run leaves to CUDA, drives their room, where
/// no budget is given.
void use_hardware_budgets(const engine::Hardware& hardware, engine::Settings& settings) {
  constexpr double kDiskShare = 0.9;
  if (hardware.device_size && !settings.budgets.device) {
    const Bytes size = *hardware.device_size;
    settings.budgets.device = std::max(size - engine::gpu_headroom(size), Bytes(0));
    log_info("headrace.device_memory: {} of the {} of the card that --hardware names",
             format_bytes(*settings.budgets.device), format_bytes(size));
  }
  if (hardware.drives > 0 && hardware.drive_size.count() > 0 && !settings.budgets.nvme) {
    settings.budgets.nvme =
        Bytes(static_cast<int64_t>(kDiskShare * static_cast<double>(hardware.drive_size.count())));
  }
}

PlanReport ask(Arguments& arguments) {
  PlanReport report;
  report.model = arguments.model;
  report.config = arguments.settings.config();
  report.dataset_tokens = arguments.tokens;
  engine::PlanQuestion& question = report.question;
  question.config = model::find_model_config(arguments.model);
  model::check_sequence_length(question.config, arguments.seq);
  const bool names_gpu = engine::names_gpu(arguments.hardware);
  engine::Settings settings =
      arguments.settings.resolve(question.config, arguments.steps, names_gpu);
  if (names_gpu && settings.compute == engine::ComputePlace::host) {
    throw UsageError("--hardware names a GPU, but headrace.compute is host; remove one of the two");
  }
  std::optional<device::GpuFound> gpu;
  if (!names_gpu) {  // else the one that is here does not count
    gpu = engine::find_gpu_for(settings);
  }
  report.hardware = engine::known_hardware(settings, gpu ? gpu->name : "");
  engine::add_named_hardware(arguments.hardware, settings, report.hardware);
  use_given_rates(arguments.rates, report.hardware);
  use_hardware_budgets(report.hardware, settings);
  report.host_budget_source =
      settings.budgets.host
          ? "given"
          : "a share of this machine's free memory; --host-memory says what another one has";
  question.options = engine::make_engine_options(settings, arguments.seq, gpu);
  question.options.memory.has_nvme |= report.hardware.drives > 0;
  engine::use_hardware(report.hardware, settings, question.options);
  return report;
}

/// Fills the answer and what goes with it.
void answer(PlanReport& report, bool advice) {
  try {
    report.plan = engine::plan_step(report.question, engine::PlanDepth::full);
    report.minimum = report.plan->minimum;
  } catch (const CapacityError& error) {
    report.refusal = error.what();
    report.minimum = engine::minimum_of(report.question);
    report.remedies = engine::find_remedies(report.question);
    return;
  }
  if (advice) {
    report.advice = engine::advise(report.question, *report.plan, report.hardware);
  }
}

void write_json(const nlohmann::json& value, const std::string& path) {
  // Paths need not be UTF-8.
  const std::string text = value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  if (path == "-") {
    fmt::print("{}\n", text);
    return;
  }
  aio::replace_file(path, text + "\n");
}

void run_sweep(const PlanReport& report, const Arguments& arguments) {
  const Sweep sweep(arguments.sweep);
  const std::vector<SweepRow> rows = sweep.run(report.question);
  if (!arguments.json.empty()) {
    write_json(to_json(sweep.keys(), rows), arguments.json);
  }
  if (arguments.json != "-") {
    fmt::print("{}", render(sweep.keys(), rows));
  }
}

void run(Arguments arguments) {
  if (!arguments.sweep.empty() && arguments.tokens) {
    throw UsageError("--tokens does not go with --sweep, whose table has no column for it");
  }
  PlanReport report = ask(arguments);
  if (!arguments.sweep.empty()) {
    run_sweep(report, arguments);
    return;
  }
  answer(report, !arguments.no_advice);
  if (!arguments.json.empty()) {
    write_json(to_json(report), arguments.json);
  }
  if (arguments.json != "-") {
    fmt::print("{}", render(report));
  }
  if (!report.plan) {
    std::fflush(stdout);
    throw CapacityError(report.refusal);
  }
}

void add_hardware_options(Command& command, Arguments& arguments) {
  command
      .add_option("--hardware", arguments.hardware,
                  fmt::format("Figures of a data sheet, or a .json or .pb file: {}; may be given "
                              "several times, a drive also twice",
                              fmt::join(engine::hardware_names(), ", ")))
      ->delimiter(',');
  command
      .add_option("--compute-rate", arguments.rates.compute,
                  "FLOP/s that the network reaches, such as 80e12")
      ->check_positive();
  command.add_option("--cpu-rate", arguments.rates.cpu,
                     "Bytes a second that the CPU optimizer moves, such as 40GB");
  command.add_option("--link-rate", arguments.rates.link,
                     "Bytes a second between host and device, each way");
  command.add_option("--nvme-read-rate", arguments.rates.nvme_read,
                     "Bytes a second, all drives together, while writes go on");
  command.add_option("--nvme-write-rate", arguments.rates.nvme_write,
                     "Bytes a second, all drives together, while reads go on");
}

}  // namespace

void add_plan(Command& app) {
  auto arguments = std::make_shared<Arguments>();
  Command* command = app.add_subcommand(
      "plan", "Whether a run fits, how fast it would be and what would change that");
  command
      ->add_option("--model", arguments->model,
                   fmt::format("Model folder or config.json, no weights needed; or a shape: {}",
                               fmt::join(model::shape_names(), ", ")))
      ->required();
  arguments->settings.add_to(*command);
  command->add_option("--seq-len", arguments->seq, "Tokens per sequence")
      ->check_positive()
      ->capture_default_str();
  command->add_option("--steps", arguments->steps, "Of the training, for an \"auto\" scheduler")
      ->check_positive()
      ->capture_default_str();
  add_hardware_options(*command, *arguments);
  command->add_option("--tokens", arguments->tokens, "Of the data set, such as 1e9")
      ->check_positive();
  command
      ->add_option("--sweep", arguments->sweep,
                   fmt::format("KEY=V1,V2,...: a table over {}; at most two keys",
                               fmt::join(Sweep::known_keys(), ", ")))
      ->allow_extra_args(false);
  command->add_flag("--no-advice", arguments->no_advice,
                    "Leave out recommended budgets and suggestions, which take most of the time");
  command->add_option("--json", arguments->json, "Write it to this file as well; -: print only it");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
