#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/settings.h"
#include "engine/engine.h"
#include "engine/trainer.h"
#include "proto/run_state.pb.h"

namespace headrace::engine {

/// A run directory that a training can go on with.
struct FoundRun {
  std::string run_id;
  std::vector<std::string> paths;  ///< folders that hold the run directories, catalog's first
  std::string directory;           ///< the run directory with the catalog
  Bytes on_disk;                   ///< blocks of its data files
  /// Empty: it ended before its first generation.
  std::optional<proto::RunState> state;
};

/// Folders in which the run directories of this training lie: the nvme paths where something is
/// offloaded there, else headrace.run_dir or the output folder.
std::vector<std::string> state_paths(const TrainJob& job, const Settings& settings);

/// The run of headrace.run_id, else the one that the output folder names, as job.resume says.
/// Empty: a new one is to be made. InputError where there must be one and is none, or where its
/// committed generation is not whole.
std::optional<FoundRun> find_run(const TrainJob& job, const Settings& settings);

/// Sets what concerns the store: new run or found one, its folders, whether it is kept.
void set_run(EngineOptions& options, const TrainJob& job, const Settings& settings,
             const std::optional<FoundRun>& found);

/// Whether the state of a run without anything on nvme finds room on disk: turns keeping off with a
/// warning where it does not, or throws CapacityError where headrace.save_interval asks for it. And
/// warns where snapshots will be left out for want of room.
void check_state_room(EngineOptions& options, const Settings& settings,
                      const model::ModelConfig& model);

/// run.json in the output folder: the run that the next command with this folder goes on with.
void write_run_pointer(const std::string& output_folder,
                       const std::vector<std::string>& directories);

/// Space that the data files of these run directories really take.
Bytes blocks_of(const std::vector<std::string>& directories);

/// The run directories of a run, by index of the path: of the one that `folder` is part of, or
/// whose output folder it is. InputError where it is neither.
std::vector<std::string> run_directories_of(const std::string& folder);

}  // namespace headrace::engine
