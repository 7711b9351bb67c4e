#include "engine/run_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "engine/resume.h"
#include "engine/run_setup.h"
#include "engine/run_state.h"
#include "tiers/catalog.h"
#include "tiers/run_directory.h"

namespace headrace::engine {

std::shared_ptr<tiers::ExtentStore> open_run(const std::string& folder,
                                             std::optional<Bytes> budget) {
  const std::vector<std::string> directories = run_directories_of(folder);
  tiers::ExtentStoreOptions options;
  for (const std::string& directory : directories) {
    const std::filesystem::path path(std::filesystem::absolute(directory).lexically_normal());
    options.paths.push_back(path.has_filename() ? path.parent_path().string()
                                                : path.parent_path().parent_path().string());
  }
  options.run_id = tiers::read_run_identity(directories.front()).run_id;
  options.disk_budget =
      budget.value_or(default_disk_budget(options.paths.front()) + blocks_of(directories));
  return tiers::ExtentStore::open(options, aio::IoEngine::create({}));
}

std::vector<tiers::GenerationInfo> list_generations(const std::string& folder) {
  return tiers::describe_generations(
      tiers::read_catalog(run_directories_of(folder).front() + "/catalog"));
}

proto::RunState run_state_of(tiers::ExtentStore& store, std::optional<uint64_t> generation) {
  const std::string run = store.directories().front();
  for (const tiers::GenerationInfo& info : store.generations()) {
    if (generation ? info.generation == *generation : info.is_committed) {
      if (info.is_committed && !info.is_snapshot && store.is_torn()) {
        throw InputError(fmt::format(
            "{}: generation {} is not whole, the run ended while it was being overwritten "
            "(headrace.durability in_place); name a snapshot with --generation",
            run, info.generation));
      }
      return parse_run_state(info.run_state, run);
    }
  }
  throw InputError(generation ? fmt::format("{} has no generation {}; headrace checkpoint list "
                                            "--run {} shows those it has",
                                            run, *generation, run)
                              : fmt::format("{} ended before its first generation", run));
}

}  // namespace headrace::engine
