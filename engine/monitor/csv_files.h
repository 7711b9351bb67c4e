#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/new_folders.h"
#include "engine/later_file.h"
#include "engine/monitor/scalars.h"

namespace headrace::engine {

/// Curves in a folder of CSV files, one for each tag, as DeepSpeed lays them out: the tag's slashes
/// and blanks become '_' in the name, the first line is "step,<last part of the tag>", a row has
/// samples and value. A new run appends to what is there, with the first line again; a file
/// `headrace_run` says whose rows are the last. A resumed run whose name stands there takes the
/// rows away that it does not have any more.
class CsvSink final : public ScalarSink {
 public:
  /// As TensorBoardSink's.
  CsvSink(const std::string& folder, const std::string& run, const KeepScalar& keep);

  void write(const std::vector<Scalar>& scalars) override;

 private:
  void begin(const std::string& tag, const std::string& path);
  static void append(const std::string& path, const std::string& line);

  NewFolders folders_;
  std::string folder_;
  std::string run_;
  std::optional<LaterFile> owner_;  ///< until the first row
  KeepScalar keep_;                 ///< empty: the rows that are there are not this run's
  std::set<std::string> begun_;     ///< tags whose file is ready for rows
};

}  // namespace headrace::engine
