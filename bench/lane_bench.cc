// Predicted and measured step times, on lanes of known rate or at the machine's own rates.

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "base/command_line.h"
#include "base/error.h"
#include "base/median.h"
#include "bench/lane_steps.h"

namespace headrace {
namespace {

struct Options {
  std::string folder;
  bool machine = false;
  std::string only;
  int depth = bench::LaneSetting().io_depth;
  int warm_up = 3;
  int steps = 3;
};

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::string traffic_text(const tiers::TierTraffic& traffic) {
  return fmt::format("{:.1f} / {:.1f}", mib(traffic.nvme_read + traffic.nvme_write),
                     mib(traffic.host_to_device + traffic.device_to_host));
}

std::vector<bench::LaneSetting> settings_of(const Options& options) {
  if (options.machine) {
    return bench::machine_matrix();
  }
  std::vector<bench::LaneSetting> settings = bench::bound_settings();
  const std::vector<bench::LaneSetting> matrix = bench::lane_matrix();
  settings.insert(settings.end(), matrix.begin(), matrix.end());
  return settings;
}

void run(const Options& options) {
  fmt::print(
      "| setting | predicted s | measured s | ratio | spread | busiest lane | share | lower bound "
      "| share | MiB nvme / "
      "link predicted | moved |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::vector<double> errors;
  for (bench::LaneSetting& setting : settings_of(options)) {
    setting.io_depth = options.depth;
    if (setting.name.find(options.only) == std::string::npos) {
      continue;
    }
    const std::string folder = fmt::format("{}/headrace-lane-bench-{}", options.folder, ::getpid());
    std::filesystem::create_directories(folder);
    const bench::LaneResult result =
        bench::run_lanes(setting, folder, options.warm_up, options.steps);
    std::filesystem::remove_all(folder);
    errors.push_back(std::abs(result.ratio - 1));
    fmt::print(
        "| {} | {:.4f} | {:.4f} | {:.3f} | {:.3f} | {} | {:.3f} | {:.4f} | {:.3f} | {} | {}{} |\n",
        setting.name, result.predicted, result.measured, result.ratio, result.spread,
        scheduler::to_string(result.bound_lane), result.bound_share, result.lower_bound,
        result.lower_bound / result.measured, traffic_text(result.planned),
        traffic_text(result.moved), result.bytes_agree ? "" : " (differ)");
    std::fflush(stdout);
  }
  if (!errors.empty()) {
    fmt::print("\n{} settings: median error {:.1f} %, largest {:.1f} %\n", errors.size(),
               100 * median(errors), 100 * *std::max_element(errors.begin(), errors.end()));
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::Options options;
  headrace::Command app("Predicted and measured step times");
  app.add_option("--folder", options.folder, "Folder for files, on the drive to use")->required();
  app.add_flag("--machine", options.machine, "At the machine's own rates");
  app.add_option("--only", options.only, "Settings whose name contains this");
  app.add_option("--depth", options.depth, "I/O parts in flight")
      ->check_positive()
      ->capture_default_str();
  app.add_option("--warm-up", options.warm_up, "Steps before the measured ones");
  app.add_option("--steps", options.steps, "Measured steps");
  if (const auto exit_code = app.parse(argc, argv)) {
    return *exit_code;
  }
  try {
    headrace::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
