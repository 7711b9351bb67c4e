#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/config/settings.h"
#include "engine/engine.h"
#include "model/model_config.h"

// Training steps on lanes of a known rate: what the schedule's simulation predicts beside what was
// measured. Used by lane_bench and by the tests.

namespace headrace::bench {

/// A run of a few steps: a model, its placement and budgets, and the rates of the lanes.
struct LaneSetting {
  std::string name;
  int64_t hidden = 192;
  int64_t layers = 6;
  int64_t device_percent = 150;  ///< of the smallest device budget; 0: no device tier
  int64_t host_percent = 150;    ///< of the smallest host budget
  std::optional<Tier> weights = Tier::nvme;
  std::optional<Tier> optimizer = Tier::nvme;
  int64_t micro_batches = 1;
  std::string policy = "optimal";
  int io_depth = engine::AioSettings().queue_depth;  ///< I/O parts in flight

  // 0: as fast as the machine.
  double nvme_read = 300e6;  ///< bytes per second
  double nvme_write = 300e6;
  double nvme_both = 0;  ///< reads and writes together
  double link = 600e6;
  double compute_seconds = 0;  ///< least time of each operation on the compute lane
  double cpu_seconds = 0;      ///< and of each on the lane of the CPU optimizer
};

/// Medians over the measured steps.
struct LaneResult {
  double predicted = 0;  ///< seconds, said before each step
  double measured = 0;
  double ratio = 0;        ///< median of predicted / measured
  double spread = 0;       ///< (largest - smallest) / median of the measured
  double bound_share = 0;  ///< time of the busiest lane at its rate, over measured
  double lower_bound = 0;  ///< seconds that no schedule could beat (scheduler::lower_bound)
  scheduler::Lane bound_lane = scheduler::Lane::compute;
  tiers::TierTraffic planned;  ///< of the last step
  tiers::TierTraffic moved;
  bool bytes_agree = true;  ///< planned and moved, in every measured step
};

/// Makes a model with random weights in `folder`, trains it `warm_up` + `steps` steps with its
/// files there, and compares the last `steps`.
LaneResult run_lanes(const LaneSetting& setting, const std::string& folder, int warm_up, int steps);

/// Model size x budgets x drive or none x accumulation x policy, on throttled lanes.
std::vector<LaneSetting> lane_matrix();

/// One step each that is bound by a direction of the drive, by a drive with one limit for both, by
/// the link and by compute, on throttled lanes.
std::vector<LaneSetting> bound_settings();

/// The settings with nvme, larger and at the machine's own rates; the step bound by the drive
/// first.
std::vector<LaneSetting> machine_matrix();

}  // namespace headrace::bench
