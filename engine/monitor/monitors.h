#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/settings.h"
#include "engine/monitor/scalars.h"
#include "engine/trainer.h"

namespace headrace::engine {

/// Where a run that is resumed stands.
struct ResumedAt {
  int64_t samples = 0;          ///< that it has seen
  bool has_evaluation = false;  ///< the validation after the last step is done
};

/// The points of a step. Those of DeepSpeed's tags stand where DeepSpeed puts them: the loss at the
/// samples seen before the step, all else at those seen after it; lr and loss_scale are those of
/// the next step.
std::vector<Scalar> scalars_of(const StepReport& report, const Settings& settings);

/// The reports that the ds_config blocks `tensorboard` and `csv_monitor` ask for. Not thread-safe.
class Monitors {
 public:
  /// Makes the folders. `run`: names the run; empty: it cannot be resumed. IoError.
  Monitors(const Settings& settings, const std::string& run,
           const std::optional<ResumedAt>& resumed);

  /// A file that cannot be written is given up with a warning: the training is worth more.
  void write(const StepReport& report);
  void write_evaluation(int64_t samples, double validation_loss);

 private:
  struct Sink {
    std::string name;
    std::unique_ptr<ScalarSink> sink;
  };

  void write(const std::vector<Scalar>& scalars);

  const Settings& settings_;
  std::vector<Sink> sinks_;
};

}  // namespace headrace::engine
