#include "aio/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

#include "aio/profile.h"
#include "aio/profile_catalog.h"
#include "base/error.h"
#include "base/units.h"
#include "engine/probe/machine_probe.h"
#include "tools/command.h"
#include "tools/progress.h"

namespace headrace::tools {

namespace {

constexpr int64_t kProgressSteps = 1000;

struct Arguments {
  std::vector<std::string> paths;
  std::string size;
  std::string json;
  double seconds = 0;
  bool quick = false;
  bool compare_fio = false;
  bool all = false;
};

/// Whether the terminal shows UTF-8, as the environment says it (POSIX: the first that is set).
bool has_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') {
      std::string locale = value;
      std::transform(locale.begin(), locale.end(), locale.begin(),
                     [](unsigned char sign) { return std::tolower(sign); });
      return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
    }
  }
  return false;
}

proto::StorageProfile probe_path(const std::string& path, const Arguments& arguments) {
  aio::ProbeOptions options;
  options.path = path;
  const char* const standard_size = arguments.quick ? "1GiB" : "4GiB";
  options.file_size =
      parse_bytes(arguments.size.empty() ? standard_size : arguments.size, "--size");
  options.seconds = arguments.seconds;
  options.memory = arguments.quick ? kMiB * 256 : options.memory;  // the largest setting's need
  options.quick = arguments.quick;
  options.compare_fio = arguments.compare_fio;
  options.cancelled = &stop_requested();
  Progress bar("probing " + path, kProgressSteps);
  options.progress = [&](const aio::ProbeProgress& progress) {
    bar.update(static_cast<int64_t>(progress.done * kProgressSteps), progress.doing);
  };
  const aio::ProbeReport report = aio::probe(options);
  bar.clear();
  fmt::print("{}\nFor a ds_config.json:\n\n{}\n\n", aio::render(report, {.utf8 = has_utf8()}),
             aio::aio_block(report));
  std::fflush(stdout);
  return aio::to_profile(report);
}

proto::MachineProfile probe_this_machine(const Arguments& arguments) {
  engine::MachineProbeOptions options;
  options.seconds = arguments.seconds > 0 ? arguments.seconds : arguments.quick ? 8 : 20;
  options.cancelled = &stop_requested();
  Progress bar("probing the machine", kProgressSteps);
  options.progress = [&](double done, const std::string& doing) {
    bar.update(static_cast<int64_t>(done * kProgressSteps), doing);
  };
  proto::MachineProfile machine = engine::probe_machine(options);
  bar.clear();
  fmt::print("{}\n", engine::render(machine));
  return machine;
}

void run(const Arguments& arguments) {
  if (arguments.paths.empty() && !arguments.all) {
    throw UsageError("name a folder with --path, or measure the machine with --all");
  }
  watch_signals();
  const aio::ProfileCatalog catalog = aio::ProfileCatalog::standard();
  proto::HardwareProfile profile;
  for (const std::string& path : arguments.paths) {
    *profile.add_storage() = probe_path(path, arguments);
    const std::string file = catalog.store(*profile.storage().rbegin());
    fmt::print("Stored as {} and .json\n\n", file);
  }
  if (arguments.all) {
    *profile.mutable_machine() = probe_this_machine(arguments);
    fmt::print("Stored as {} and .json\n", catalog.store_machine(profile));
  }
  if (!arguments.json.empty()) {
    aio::replace_file(arguments.json, aio::to_json(profile));
  }
}

}  // namespace

void add_probe(Command& app) {
  auto arguments = std::make_shared<Arguments>();
  Command* command =
      app.add_subcommand("probe", "Measure the storage below a folder and suggest an aio block");
  command->add_option("--path", arguments->paths, "Folder on the storage; several: one by one");
  command->add_option("--size", arguments->size,
                      "Of the temporary file; standard: 4GiB, or 1GiB with --quick");
  command->add_flag("--quick", arguments->quick, "Fewer settings, at most 8 seconds a path");
  command->add_option("--seconds", arguments->seconds, "Per path, instead of 30 (--quick: 8)");
  command->add_option("--json", arguments->json, "Also writes the report to this file");
  command->add_flag("--compare-fio", arguments->compare_fio,
                    "Runs fio by turns at the best setting; about 20 seconds more");
  command->add_flag("--all", arguments->all,
                    "Also memory, CPU optimizer, matrix products and copies of this machine");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
