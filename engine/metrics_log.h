#pragma once

#include <fstream>
#include <string>

#include "engine/trainer.h"

namespace headrace::engine {

/// metrics.jsonl of a run: one JSON object per step with everything the step line shows, bytes
/// moved per boundary and the split of the wall time. Starts anew; each line is flushed. Throws
/// IoError.
class MetricsLog {
 public:
  explicit MetricsLog(const std::string& path);

  void write(const StepReport& report);
  void write_evaluation(int64_t step, double validation_loss);

 private:
  void append(const std::string& line);

  std::string path_;
  std::ofstream file_;
};

/// The lane that bounds a step, and the share of the step's time it was busy (1: at its bound).
struct Binding {
  scheduler::Lane lane = scheduler::Lane::compute;
  double share = 0;
};
Binding binding_of(const RunReport& run);

}  // namespace headrace::engine
