#pragma once

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/new_folders.h"
#include "engine/later_file.h"
#include "engine/monitor/scalars.h"
#include "proto/tensorboard.pb.h"

namespace headrace::engine {

/// A record of a TFRecord file: length, its masked CRC-32C, the bytes, their masked CRC-32C.
std::string tfrecord(const std::string& bytes);

/// The events of a file up to the first record that is cut off or damaged; IoError where it cannot
/// be opened.
std::vector<tensorboard::Event> read_events(const std::string& path);

/// Curves in a folder of TensorBoard event files, a new one for each process. Files carry the run's
/// name: when a run is resumed, points of steps that it does not have any more are taken out of its
/// own files, and of no others.
class TensorBoardSink final : public ScalarSink {
 public:
  /// Makes the folder and the file, which are gone with this if nothing is written. `run`: names
  /// the run; empty: one that is never resumed. `keep`: empty for a new run. `samples`: that the
  /// run has seen so far.
  TensorBoardSink(const std::string& folder, const std::string& run, const KeepScalar& keep,
                  int64_t samples);

  void write(const std::vector<Scalar>& scalars) override;

 private:
  void begin();
  void append(tensorboard::Event event);

  NewFolders folders_;
  std::string path_;
  std::optional<int64_t> resumed_at_;  ///< samples seen before
  std::optional<LaterFile> later_;     ///< until begin()
  std::ofstream file_;
};

}  // namespace headrace::engine
