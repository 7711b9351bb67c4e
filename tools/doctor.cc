#include "engine/doctor/doctor.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tools/command.h"

namespace headrace::tools {

namespace {

struct Arguments {
  std::vector<std::string> paths = {"."};
  bool json = false;
};

void run(const Arguments& arguments) {
  const std::vector<engine::Finding> findings = engine::examine_machine(arguments.paths);
  fmt::print("{}\n", arguments.json ? engine::to_json(findings) : engine::render(findings));
}

}  // namespace

void add_doctor(Command& app) {
  auto arguments = std::make_shared<Arguments>();
  Command* command = app.add_subcommand(
      "doctor", "What this machine has for a run, what holds it back, and how to change it");
  command->add_option("--path", arguments->paths,
                      "Folders that are to hold state; standard: the current one");
  command->add_flag("--json", arguments->json, "For programs");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
