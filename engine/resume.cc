#include "engine/resume.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "engine/nvme_weights.h"
#include "engine/run_setup.h"
#include "engine/run_state.h"
#include "model/checkpoint_file.h"
#include "tiers/catalog.h"
#include "tiers/run_directory.h"

namespace headrace::engine {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPointer = "run.json";
constexpr Bytes kPointerLimit{1 << 20};

std::string directory_in(const std::string& path, const std::string& run_id) {
  return fmt::format("{}/headrace-{}", path, run_id);
}

std::vector<std::string> directories_in(const std::vector<std::string>& paths,
                                        const std::string& run_id) {
  std::vector<std::string> directories;
  directories.reserve(paths.size());
  for (const std::string& path : paths) {
    directories.push_back(directory_in(path, run_id));
  }
  return directories;
}

bool all_exist(const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    if (fs::exists(directory) && !tiers::is_run_directory(directory)) {
      throw InputError(fmt::format(
          "{} is there, but its RUN does not say that it is a run directory of Headrace: move it "
          "away, or begin a new run with --resume never",
          directory));
    }
  }
  return !directories.empty() &&
         std::all_of(directories.begin(), directories.end(), tiers::is_run_directory);
}

struct Pointer {
  std::string run_id;
  std::vector<std::string> directories;
};

/// Empty where the output folder names no run.
std::optional<Pointer> read_pointer(const std::string& output_folder) {
  const std::string path = output_folder + "/" + kPointer;
  if (!fs::exists(path)) {
    return std::nullopt;
  }
  try {
    const auto json = nlohmann::json::parse(model::read_text_file(path, kPointerLimit));
    return Pointer{json.at("run_id").get<std::string>(),
                   json.at("directories").get<std::vector<std::string>>()};
  } catch (const nlohmann::json::exception& error) {
    throw InputError(
        fmt::format("{} cannot be read ({}); remove it to begin a new run, or name the run with "
                    "headrace.run_id",
                    path, error.what()));
  }
}

/// The directories ordered by their index, so that the first one has the catalog.
std::vector<std::string> by_index(const std::vector<std::string>& directories) {
  std::vector<std::string> ordered(directories.size());
  for (const std::string& directory : directories) {
    const tiers::RunIdentity identity = tiers::read_run_identity(directory);
    if (identity.count != static_cast<int>(directories.size()) ||
        !ordered[static_cast<size_t>(identity.index)].empty()) {
      throw InputError(
          fmt::format("{} is path {} of {} of its run, which does not fit the other {}", directory,
                      identity.index + 1, identity.count, directories.size() - 1));
    }
    ordered[static_cast<size_t>(identity.index)] = directory;
  }
  return ordered;
}

FoundRun load_run(const std::string& run_id, const std::vector<std::string>& directories) {
  FoundRun run;
  run.run_id = run_id;
  const std::vector<std::string> ordered = by_index(directories);
  run.directory = ordered.front();
  run.on_disk = blocks_of(ordered);
  for (const std::string& directory : ordered) {
    run.paths.push_back(fs::path(directory).parent_path());
  }
  const tiers::CatalogContents contents = tiers::read_catalog(run.directory + "/catalog");
  if (contents.updating) {
    std::string snapshots;
    for (const auto& [generation, snapshot] : contents.snapshots) {
      snapshots += fmt::format("{}{}", snapshots.empty() ? "" : ", ", generation);
    }
    throw InputError(fmt::format(
        "{}: the run ended while step {} was written over generation {} (headrace.durability "
        "in_place), so that generation is not whole; {}",
        run.directory, *contents.updating, contents.generation,
        snapshots.empty()
            ? "there is no snapshot to go back to: begin a new run with --resume never"
            : fmt::format("go back to a snapshot with headrace checkpoint restore --run {} "
                          "--generation N; there are {}",
                          run.directory, snapshots)));
  }
  if (contents.has_generation) {
    run.state = parse_run_state(contents.run_state, run.directory);
  }
  return run;
}

}  // namespace

Bytes blocks_of(const std::vector<std::string>& directories) {
  constexpr int64_t kBlock = 512;
  int64_t sum = 0;
  for (const std::string& directory : directories) {
    std::error_code error;  // one that cannot be listed is refused when it is opened
    for (const auto& entry : fs::directory_iterator(directory, error)) {
      struct stat status {};
      if (entry.path().filename().string().starts_with("data-") &&
          ::stat(entry.path().c_str(), &status) == 0) {
        sum += status.st_blocks * kBlock;
      }
    }
  }
  return Bytes(sum);
}

std::vector<std::string> state_paths(const TrainJob& job, const Settings& settings) {
  if (settings.offload.uses_nvme()) {
    return settings.offload.nvme_paths;
  }
  return {settings.keeping.run_dir.empty() ? job.output_folder : settings.keeping.run_dir};
}

std::optional<FoundRun> find_run(const TrainJob& job, const Settings& settings) {
  if (job.resume == ResumeMode::never) {
    return std::nullopt;
  }
  const std::vector<std::string> paths = state_paths(job, settings);
  std::string where = job.output_folder;
  std::optional<FoundRun> found;
  if (!settings.run_id.empty()) {
    where = fmt::format("{}", fmt::join(directories_in(paths, settings.run_id), ", "));
    if (all_exist(directories_in(paths, settings.run_id))) {
      found = load_run(settings.run_id, directories_in(paths, settings.run_id));
    }
  } else if (const auto pointer = read_pointer(job.output_folder)) {
    // The folders of the configuration first: drives may be mounted elsewhere today.
    if (all_exist(directories_in(paths, pointer->run_id))) {
      found = load_run(pointer->run_id, directories_in(paths, pointer->run_id));
    } else if (all_exist(pointer->directories)) {
      found = load_run(pointer->run_id, pointer->directories);
      log_info("the run stays where it is, in {}; {} is for new runs",
               fmt::join(pointer->directories, ", "), fmt::join(paths, ", "));
    } else {
      where = fmt::format("{}", fmt::join(pointer->directories, ", "));
      log_info("{} names a run in {} that is not there any more", job.output_folder, where);
    }
  }
  if (job.resume == ResumeMode::must && (!found || !found->state)) {
    throw InputError(fmt::format("--resume must: there is no run to go on with in {}", where));
  }
  return found;
}

void set_run(EngineOptions& options, const TrainJob& job, const Settings& settings,
             const std::optional<FoundRun>& found) {
  const std::vector<std::string> paths = state_paths(job, settings);
  options.keep_state = true;
  options.in_place = options.memory.in_place();
  if (settings.keeping.durability == Durability::in_place && !options.in_place) {
    log_info(
        "headrace.durability: in_place has no effect where state lives in host or device "
        "memory: it is written at checkpoints only");
  }
  options.reopen = found.has_value();
  if (found) {
    options.run_id = found->run_id;
    options.nvme_paths = found->paths;
    options.nvme_weights = nvme_weights(found->paths);
  } else {
    options.nvme_paths = paths;
  }
  options.memory.nvme_path = options.nvme_paths.front();
  if (!settings.budgets.nvme) {
    options.nvme_budget =
        default_disk_budget(options.nvme_paths.front()) + (found ? found->on_disk : Bytes(0));
    options.memory.nvme_budget = options.nvme_budget;
  }
}

void check_state_room(EngineOptions& options, const Settings& settings,
                      const model::ModelConfig& model) {
  const KeepingSettings& keeping = settings.keeping;
  LayoutOptions layout;
  layout.dtype = options.dtype;
  layout.state = options.memory.state;
  layout.shard_max = std::max(settings.offload.sub_group, kStatisticsBlock);
  layout.tokens = 1;
  const StateBytes bytes = state_bytes(make_layout(model, layout));
  const Bytes state = bytes.weights + bytes.optimizer;
  const bool lives_elsewhere = !settings.offload.uses_nvme();
  const Bytes needed = state * (lives_elsewhere && keeping.save_interval > 0 ? 2 : 1);
  if (lives_elsewhere && options.nvme_budget < needed) {
    const std::string text = fmt::format(
        "saving the state needs {} in {}, but the budget is {}; raise --nvme-budget, or set "
        "headrace.run_dir",
        format_bytes(needed), options.nvme_paths.front(), format_bytes(options.nvme_budget));
    if (keeping.save_interval > 0 || options.reopen) {
      throw CapacityError(text);
    }
    log_warning("this run cannot be resumed: {}", text);
    options.keep_state = false;
    return;
  }
  const Bytes with_snapshots = state * (2 + std::max<int64_t>(keeping.keep_last, 1));
  if (keeping.save_interval > 0 && options.nvme_budget < with_snapshots) {
    log_warning(
        "headrace.keep_last: {} snapshots of {} may need {} with the state itself, but the budget "
        "is {}; those that find no room are left out",
        keeping.keep_last, format_bytes(state), format_bytes(with_snapshots),
        format_bytes(options.nvme_budget));
  }
}

void write_run_pointer(const std::string& output_folder,
                       const std::vector<std::string>& directories) {
  nlohmann::ordered_json json;
  json["run_id"] = tiers::read_run_identity(directories.front()).run_id;
  json["directories"] = directories;
  model::replace_file(
      output_folder + "/" + kPointer,
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

std::vector<std::string> run_directories_of(const std::string& folder) {
  if (tiers::is_run_directory(folder)) {
    const tiers::RunIdentity identity = tiers::read_run_identity(folder);
    if (identity.index != 0) {
      throw InputError(fmt::format(
          "{} is path {} of {} of its run; name the directory of the first one, which has the "
          "catalog",
          folder, identity.index + 1, identity.count));
    }
    std::vector<std::string> directories =
        tiers::read_catalog(folder + "/catalog").store.directories;
    if (!directories.empty()) {
      directories.front() = folder;  // it may have been moved since
    }
    return directories;
  }
  if (const auto pointer = read_pointer(folder)) {
    return pointer->directories;
  }
  throw InputError(fmt::format(
      "{} is neither a run directory (headrace-<run id>) nor an output folder that names one",
      folder));
}

}  // namespace headrace::engine
