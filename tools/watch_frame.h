#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/trainer.h"

namespace headrace::tools {

/// Everything that the live view shows.
struct WatchState {
  std::string phase;  ///< "loading", "training"; what `done` and `total` count
  int64_t done = 0;
  int64_t total = 0;
  std::optional<double> seconds_left;
  double seconds_in_step = 0;                ///< since the last step has ended
  std::optional<engine::StepReport> report;  ///< of the last step
  std::optional<double> validation_loss;
  engine::LiveGauges gauges;
  double read_rate = 0;  ///< bytes per second now, between nvme and host
  double write_rate = 0;
  bool is_stopping = false;
  std::vector<std::string> messages;  ///< the newest last
};

/// The view as lines of printable ASCII, none longer than `columns`, at most `rows` of them; what
/// matters least is left out first.
std::vector<std::string> watch_frame(const WatchState& state, size_t columns, size_t rows);

}  // namespace headrace::tools
