#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/error.h"
#include "base/utc.h"
#include "engine/run_access.h"
#include "tools/command.h"

namespace headrace::tools {

namespace {

struct Arguments {
  std::string run;
  std::string nvme_budget;
  std::optional<uint64_t> generation;
  bool discard_current = false;
};

std::string time_text(int64_t unix_nanoseconds) {
  return utc_text(unix_nanoseconds / 1'000'000'000, "%Y-%m-%d %H:%M:%S UTC");
}

void list(const Arguments& arguments) {
  const auto generations = engine::list_generations(arguments.run);
  fmt::print("{:>10}  {:<23}  {:>10}  {:>10}  {}\n", "generation", "committed", "size", "own",
             "kept as");
  for (const tiers::GenerationInfo& info : generations) {
    std::string kept = info.is_committed ? "current" : "";
    if (info.is_snapshot) {
      kept += fmt::format("{}snapshot{}", kept.empty() ? "" : ", ",
                          info.is_automatic ? " (automatic)" : "");
    }
    fmt::print("{:>10}  {:<23}  {:>10}  {:>10}  {}\n", info.generation,
               time_text(info.committed_unix_nanoseconds), format_bytes(info.size),
               format_bytes(info.own_size), kept);
  }
}

void create(const Arguments& arguments) {
  std::optional<Bytes> budget;
  if (!arguments.nvme_budget.empty()) {
    budget = parse_bytes(arguments.nvme_budget, "--nvme-budget");
  }
  const auto store = engine::open_run(arguments.run, budget);
  engine::run_state_of(*store, std::nullopt);
  store->take_snapshot(false, 0);
  fmt::print("generation {} is kept as a snapshot\n", store->generation());
}

void remove(const Arguments& arguments) {
  const auto store = engine::open_run(arguments.run);
  store->delete_snapshot(*arguments.generation);
  fmt::print("the snapshot of generation {} is deleted\n", *arguments.generation);
}

/// The current generation stays as a snapshot unless it is not whole, or not wanted.
void restore(const Arguments& arguments) {
  const auto store = engine::open_run(arguments.run);
  const uint64_t current = store->generation();
  const bool keep = store->has_generation() && !store->is_torn() && !arguments.discard_current;
  engine::run_state_of(*store, arguments.generation);
  if (keep && current != *arguments.generation) {
    try {
      store->take_snapshot(false, 0);
    } catch (const CapacityError& error) {
      throw CapacityError(fmt::format(
          "generation {}, the current one, cannot be kept: {}; give it up with --discard-current",
          current, error.what()));
    }
  }
  store->restore(*arguments.generation);
  fmt::print("generation {} is the current one{}\n", *arguments.generation,
             keep && current != *arguments.generation
                 ? fmt::format("; generation {} stays as a snapshot", current)
                 : "");
}

Command* add_action(Command& command, const std::shared_ptr<Arguments>& arguments,
                    const std::string& name, const std::string& help,
                    void (*action)(const Arguments&)) {
  Command* added = command.add_subcommand(name, help);
  added->add_option("--run", arguments->run, "Run directory, or output folder of the training")
      ->required();
  added->callback([arguments, action] { action(*arguments); });
  return added;
}

}  // namespace

void add_checkpoint(Command& app) {
  auto arguments = std::make_shared<Arguments>();
  Command* command =
      app.add_subcommand("checkpoint", "List, take, delete and go back to snapshots of a run");
  command->require_subcommand(1);
  add_action(*command, arguments, "list", "Generations that the run holds", list);
  Command* create_action = add_action(*command, arguments, "create",
                                      "Keep the current generation; no data is copied", create);
  create_action->add_option("--nvme-budget", arguments->nvme_budget, "Most bytes on NVMe");
  Command* delete_action =
      add_action(*command, arguments, "delete", "Delete a snapshot and free its space", remove);
  Command* restore_action =
      add_action(*command, arguments, "restore",
                 "Make a snapshot the generation that training goes on from", restore);
  for (Command* with_generation : {delete_action, restore_action}) {
    with_generation->add_option("--generation", arguments->generation, "Number of the snapshot")
        ->required();
  }
  restore_action->add_flag("--discard-current", arguments->discard_current,
                           "Do not keep the current generation as a snapshot");
}

}  // namespace headrace::tools
