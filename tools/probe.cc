#include "aio/probe.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "tools/command.h"
#include "tools/progress.h"

namespace headrace::tools {

namespace {

struct Arguments {
  std::vector<std::string> paths;
  std::string size = "1GiB";
  bool quick = false;
};

void probe_path(const std::string& path, const Arguments& arguments) {
  constexpr int64_t kProgressSteps = 1000;
  aio::ProbeOptions options;
  options.path = path;
  options.file_size = parse_bytes(arguments.size, "--size");
  options.quick = arguments.quick;
  options.cancelled = &stop_requested();
  Progress bar("probing " + path, kProgressSteps);
  options.progress = [&](const aio::ProbeProgress& progress) {
    bar.update(static_cast<int64_t>(progress.done * kProgressSteps), progress.doing);
  };
  const aio::ProbeReport report = aio::probe(options);
  bar.clear();
  fmt::print("{}\nFor a ds_config.json:\n\n{}\n", aio::render(report), aio::aio_block(report));
}

void run(const Arguments& arguments) {
  watch_signals();
  for (const std::string& path : arguments.paths) {
    probe_path(path, arguments);
  }
}

}  // namespace

void add_probe(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("probe", "Measure the storage below a folder and suggest an aio block");
  command->add_option("--path", arguments->paths, "Folder on the storage; several: one by one")
      ->required();
  command->add_option("--size", arguments->size, "Of the temporary file")->capture_default_str();
  command->add_flag("--quick", arguments->quick, "Fewer settings, at most 8 seconds a path");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
