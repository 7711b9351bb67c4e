#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/units.h"
#include "base/utc.h"
#include "model/checkpoint_file.h"
#include "tools/command.h"
#include "tools/report_data.h"
#include "tools/report_page.h"

namespace headrace::tools {

namespace {

struct Arguments {
  std::string run;
  std::string output;
};

void run(const Arguments& arguments) {
  nlohmann::ordered_json data = read_report_data(arguments.run);
  data["written"] = utc_text(std::time(nullptr), "%Y-%m-%d %H:%M:%S UTC");
  data["headrace"] = HEADRACE_VERSION;
  const std::string page = make_report_page(data);
  const std::string path = arguments.output.empty()
                               ? (std::filesystem::path(arguments.run) / "report.html").string()
                               : arguments.output;
  model::replace_file(path, page);
  fmt::print("report: {} ({}, {} steps)\n", path,
             format_bytes(Bytes(static_cast<int64_t>(page.size()))),
             data["steps"]["last"].get<int64_t>());
}

}  // namespace

void add_report(Command& app) {
  auto arguments = std::make_shared<Arguments>();
  Command* command = app.add_subcommand(
      "report", "One HTML page of a run: curves, a step on its lanes, memory, where the time went");
  command
      ->add_option("RUN", arguments->run,
                   "Output folder of `headrace train`, also of a run in progress")
      ->required();
  command
      ->add_option("--output", arguments->output, "The page; by default report.html in the folder")
      ->option_text("FILE.html");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
