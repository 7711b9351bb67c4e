#include <fmt/format.h>

#include <map>
#include <memory>

#include "base/error.h"
#include "engine/run_access.h"
#include "engine/run_state.h"
#include "tools/command.h"
#include "tools/progress.h"

namespace headrace::tools {

namespace {

void run(const std::string& folder) {
  const auto store = engine::open_run(folder);
  std::map<uint64_t, proto::StateLayout> layouts;
  for (const tiers::GenerationInfo& info : store->generations()) {
    layouts[info.generation] =
        engine::parse_run_state(info.run_state, store->directories().front()).layout();
  }
  std::unique_ptr<Progress> progress;
  int64_t checked = 0;
  const auto damage = store->verify([&](Bytes done, Bytes total) {
    if (progress == nullptr) {
      progress = std::make_unique<Progress>("verifying", total.count());
    }
    progress->update(done.count());
    checked = total.count();
  });
  progress.reset();
  for (const tiers::Damage& each : damage) {
    fmt::print("{}\n  {}\n  generation {}\n", each.text,
               engine::describe_damage(each, layouts[each.generations.front()]),
               fmt::join(each.generations, ", "));
  }
  if (store->is_torn()) {
    fmt::print("generation {} is not whole: the run ended while it was being overwritten\n",
               store->generation());
  }
  if (!damage.empty() || store->is_torn()) {
    IoError::Where where;
    where.path = store->directories().front();
    throw IoError(fmt::format("{} of its extents are damaged{}", damage.size(),
                              store->is_torn() ? ", and its current generation is not whole" : ""),
                  where);
  }
  fmt::print("{} in {} generation(s): every checksum matches\n", format_bytes(Bytes(checked)),
             layouts.size());
}

}  // namespace

void add_verify(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("verify", "Check every byte of a run's state against its checksums");
  command->add_option("--run", *folder, "Run directory, or output folder of the training")
      ->required();
  command->callback([folder] { run(*folder); });
}

}  // namespace headrace::tools
