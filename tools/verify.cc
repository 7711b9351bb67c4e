#include <fmt/format.h>

#include <map>
#include <memory>

#include "base/error.h"
#include "engine/repair.h"
#include "engine/run_access.h"
#include "engine/run_state.h"
#include "engine/state_layout.h"
#include "tools/command.h"
#include "tools/progress.h"

namespace headrace::tools {

namespace {

struct Arguments {
  std::string run;
  bool repair = false;
};

using Layouts = std::map<uint64_t, proto::StateLayout>;

/// Checks everything, with a progress bar; `checked` is set to the bytes.
std::vector<tiers::Damage> check(tiers::ExtentStore& store, Bytes& checked) {
  std::unique_ptr<Progress> progress;
  return store.verify([&](Bytes done, Bytes total) {
    if (progress == nullptr) {
      progress = std::make_unique<Progress>("verifying", total.count());
    }
    progress->update(done.count());
    checked = total;
  });
}

void print(const tiers::Damage& damage, const Layouts& layouts) {
  fmt::print("{}\n  {}\n  generation {}\n", damage.text,
             engine::describe_damage(damage, layouts.at(damage.generations.front())),
             fmt::join(damage.generations, ", "));
}

/// Repairs what can be, says what came of it, and leaves the rest in `damage`.
void repair(tiers::ExtentStore& store, std::vector<tiers::Damage>& damage) {
  const std::vector<tiers::Repair> repairs = engine::repair_damage(store, damage);
  std::vector<tiers::Damage> left;
  for (size_t i = 0; i < damage.size(); ++i) {
    fmt::print("object '{}' at offset {}: {}{}\n", damage[i].object, damage[i].extent.offset,
               repairs[i].is_repaired ? "repaired, with bytes that are " : "not repaired: ",
               repairs[i].text);
    if (!repairs[i].is_repaired) {
      left.push_back(damage[i]);
    }
  }
  damage = std::move(left);
}

/// What there is to do about damage that stays.
void print_advice(const tiers::ExtentStore& store, const std::vector<tiers::Damage>& damage,
                  const Arguments& arguments) {
  if (!damage.empty() && !arguments.repair) {
    fmt::print(
        "headrace verify --run {} --repair\n"
        "  mends extents whose bytes are elsewhere in the run\n",
        arguments.run);
  }
  bool current_is_bad = store.is_torn();
  for (const tiers::GenerationInfo& info : store.generations()) {
    const bool is_damaged = engine::is_damaged(info.generation, damage);
    current_is_bad = current_is_bad || (info.is_committed && is_damaged);
    if (is_damaged && info.is_snapshot && !info.is_committed) {
      fmt::print(
          "headrace checkpoint delete --run {} --generation {}\n"
          "  gives up this damaged snapshot\n",
          arguments.run, info.generation);
    }
  }
  const auto whole = engine::newest_whole_snapshot(store, damage);
  if (!current_is_bad) {
    fmt::print("the current generation is whole\n");
  } else if (whole) {
    fmt::print(
        "headrace checkpoint restore --run {} --generation {} --discard-current\n"
        "  goes back to the newest snapshot that is whole\n",
        arguments.run, *whole);
  } else {
    fmt::print("no snapshot is whole\n");
  }
}

void run(const Arguments& arguments) {
  const auto store = engine::open_run(arguments.run);
  Layouts layouts;
  for (const tiers::GenerationInfo& info : store->generations()) {
    layouts[info.generation] =
        engine::parse_run_state(info.run_state, store->directories().front()).layout();
  }
  Bytes checked;
  std::vector<tiers::Damage> damage = check(*store, checked);
  for (const tiers::Damage& each : damage) {
    print(each, layouts);
  }
  if (store->is_torn()) {
    fmt::print("generation {} is not whole: the run ended while it was being overwritten\n",
               store->generation());
  }
  const bool was_damaged = !damage.empty();
  if (was_damaged && arguments.repair) {
    repair(*store, damage);
  }
  if (!damage.empty() || store->is_torn()) {
    print_advice(*store, damage, arguments);
    IoError::Where where;
    where.path = store->directories().front();
    throw IoError(fmt::format("{} of its extents are damaged{}", damage.size(),
                              store->is_torn() ? ", and its current generation is not whole" : ""),
                  where);
  }
  fmt::print("{} in {} generation(s): every checksum matches{}\n", format_bytes(checked),
             layouts.size(), was_damaged ? " now" : "");
}

}  // namespace

void add_verify(Command& app) {
  auto arguments = std::make_shared<Arguments>();
  Command* command =
      app.add_subcommand("verify", "Check every byte of a run's state against its checksums");
  command->add_option("--run", arguments->run, "Run directory, or output folder of the training")
      ->required();
  command->add_flag("--repair", arguments->repair,
                    "Write damaged extents anew where their bytes are elsewhere in the run");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
