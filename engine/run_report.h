#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/schedule.h"

namespace headrace::engine {

/// Where the wall time of a step went; the parts add up to `total`.
struct TimeSplit {
  double compute = 0;
  double cpu_optimizer = 0;  ///< optimizer or gradient work on the CPU with nothing computing
  double nvme_read = 0;      ///< waiting for
  double nvme_write = 0;
  double host_to_device = 0;
  double device_to_host = 0;
  double other = 0;
  double total = 0;

  TimeSplit& operator+=(const TimeSplit& part);
};

/// The part of the time that a lane is charged with; none: "other".
double& part_of(TimeSplit& split, std::optional<scheduler::Lane> lane);

/// Transfers of one lane that followed each other or overlapped.
struct BusyPeriod {
  int64_t bytes = 0;
  double seconds = 0;  ///< from when the first could begin to the last end
  double shared = 0;   ///< of these, on the drive: while the other direction had transfers, too
};

/// Wall time charged to a lane; none: "other".
struct Charge {
  std::optional<scheduler::Lane> lane;
  double begin = 0;
  double end = 0;
};

/// Bytes that slots take in an arena from `time` on.
struct ArenaLevel {
  Tier tier = Tier::host;
  Bytes used;
  double time = 0;
};

/// What happened when in one run of a schedule; times in seconds from `start`.
struct RunRecord {
  std::chrono::steady_clock::time_point start;
  /// Transfers and operations in the order of their ends. On nvme lanes they overlap.
  std::vector<scheduler::Span> spans;
  std::vector<Charge> charges;  ///< from 0 to the end without a gap; the parts of RunReport::split
  std::vector<ArenaLevel> levels;  ///< of every tier at first, then at each change
};

/// What one run of a schedule did.
struct RunReport {
  TimeSplit split;
  /// Seconds in which each lane had work in flight, by scheduler::Lane.
  std::array<double, scheduler::kLaneCount> busy{};
  /// Seconds that each operation of the trace took from when it could begin: when what it waits for
  /// and the operation before it on its lane had ended.
  std::vector<double> operation_seconds;
  /// When each operation of the trace ended, in seconds from the start of the run.
  std::vector<double> operation_ends;
  /// The times in which a lane had transfers in flight, without a gap; by scheduler::Lane.
  std::array<std::vector<BusyPeriod>, scheduler::kLaneCount> busy_periods;
  std::optional<RunRecord> record;  ///< where asked for
};

}  // namespace headrace::engine
