#pragma once

#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/later_file.h"
#include "engine/trainer.h"
#include "proto/run_state.pb.h"

namespace headrace::engine {

/// In the output folder.
inline constexpr const char* kMetricsFile = "metrics.jsonl";

/// metrics.jsonl of a run: one JSON object per step with everything the step line shows, bytes
/// moved per boundary and the split of the wall time. Each line is flushed. Throws IoError.
class MetricsLog {
 public:
  /// Keeps the lines of steps up to `last_step`, of the run that goes on; 0: starts anew, with
  /// begin() or the first line.
  explicit MetricsLog(const std::string& path, int64_t last_step = 0);

  void begin();
  void write(const StepReport& report);
  /// What is known of the last step of a run that was killed before its line was written.
  void write_restored(int64_t step, const proto::StepRecord& record);
  void write_evaluation(int64_t step, double validation_loss);

  /// Whether the last step that was kept has its line, and that of an evaluation after it.
  bool has_step() const { return has_step_; }
  bool has_evaluation() const { return has_evaluation_; }

 private:
  void keep_lines(int64_t last_step);
  void append(const std::string& line);

  std::string path_;
  std::optional<LaterFile> later_;  ///< until begin()
  std::ofstream file_;
  bool has_step_ = false;
  bool has_evaluation_ = false;
};

/// The parts of a step's time and of its bytes under the names that they have in metrics.jsonl and
/// in the monitors' tags.
std::vector<std::pair<const char*, double>> named_parts(const TimeSplit& split);
std::vector<std::pair<const char*, int64_t>> named_parts(const tiers::TierTraffic& traffic);

/// The lane that was busy longest in a step, and the share of the step's time it was.
struct Binding {
  scheduler::Lane lane = scheduler::Lane::compute;
  double share = 0;
};
Binding binding_of(const RunReport& run);

}  // namespace headrace::engine
