#include "engine/learned_costs.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/median.h"
#include "scheduler/costs.h"

namespace headrace::engine {

namespace {

constexpr size_t kStepsKept = 5;

/// A step whose operations took so much longer than the median step's was disturbed.
constexpr double kDisturbed = 1.25;

}  // namespace

/// Least squares with weights 1 / bytes, so that short periods tell the latency, long ones the
/// rate, and the sum of all seconds comes out. Where periods are too much alike to tell the two
/// apart, or the latency would be negative, all is rate.
std::optional<LaneRate> fit_lane(const std::vector<BusyPeriod>& periods, double drive_share) {
  double bytes = 0;
  double seconds = 0;
  double reciprocal_bytes = 0;
  double seconds_per_byte = 0;
  for (const BusyPeriod& period : periods) {
    const auto moved = static_cast<double>(period.bytes);
    const double alone = period.seconds - (1 - drive_share) * period.shared;
    bytes += moved;
    seconds += alone;
    reciprocal_bytes += 1 / moved;
    seconds_per_byte += alone / moved;
  }
  if (bytes <= 0 || seconds <= 0) {
    return std::nullopt;
  }
  const auto count = static_cast<double>(periods.size());
  const double determinant = reciprocal_bytes * bytes - count * count;
  if (determinant > 0.01 * count * count) {
    const double latency = (seconds_per_byte * bytes - seconds * count) / determinant;
    const double left = seconds - count * latency;
    if (latency > 0 && left > 0) {
      return LaneRate{bytes / left, latency};
    }
  }
  return LaneRate{bytes / seconds, 0};
}

LearnedCosts::LearnedCosts(const scheduler::Rates& rates)
    : drive_share_(scheduler::drive_share(rates)) {}

void LearnedCosts::note(const RunReport& report, double commit_seconds) {
  // The first step finds cold memory and new files: once there is another one, it does not count.
  if (++steps_ == 2 || last_.size() == kStepsKept) {
    last_.pop_front();
  }
  Step& step = last_.emplace_back();
  step.operation_seconds = report.operation_seconds;
  step.all_operations =
      std::accumulate(step.operation_seconds.begin(), step.operation_seconds.end(), 0.0);
  for (size_t lane = 0; lane < step.lanes.size(); ++lane) {
    step.lanes[lane] = fit_lane(report.busy_periods[lane], drive_share_);
  }
  step.commit_seconds = commit_seconds;
}

std::vector<const LearnedCosts::Step*> LearnedCosts::undisturbed() const {
  std::vector<double> sums;
  for (const Step& step : last_) {
    sums.push_back(step.all_operations);
  }
  const double most = kDisturbed * median(sums);
  std::vector<const Step*> steps;
  for (const Step& step : last_) {
    if (step.all_operations <= most || last_.size() < 3) {
      steps.push_back(&step);
    }
  }
  return steps;
}

/// Means: they add up to what a step took, medians would leave out what delays now this operation,
/// now that one.
void LearnedCosts::apply_to(scheduler::Trace& trace) const {
  const std::vector<const Step*> steps = undisturbed();
  for (size_t i = 0; i < trace.operations.size(); ++i) {
    double sum = 0;
    for (const Step* step : steps) {
      HR_CHECK(step->operation_seconds.size() == trace.operations.size(), "{} of {} operations",
               step->operation_seconds.size(), trace.operations.size());
      sum += step->operation_seconds[i];
    }
    trace.operations[i].seconds = sum / static_cast<double>(steps.size());
  }
}

std::optional<LaneRate> LearnedCosts::rate_of(scheduler::Lane lane) const {
  std::vector<double> rates;
  std::vector<double> latencies;
  for (const Step& step : last_) {
    if (const auto& found = step.lanes[static_cast<size_t>(lane)]) {
      rates.push_back(found->bytes_per_second);
      latencies.push_back(found->latency);
    }
  }
  if (rates.empty()) {
    return std::nullopt;
  }
  return LaneRate{median(std::move(rates)), median(std::move(latencies))};
}

void LearnedCosts::apply_to(scheduler::Rates& rates) const {
  using scheduler::Lane;
  const auto set = [&](Lane lane, double& bytes_per_second, std::vector<double>& latencies) {
    if (const auto found = rate_of(lane)) {
      bytes_per_second = found->bytes_per_second;
      latencies.push_back(found->latency);
    }
  };
  std::vector<double> nvme;
  std::vector<double> link;
  set(Lane::nvme_read, rates.nvme_read, nvme);
  set(Lane::nvme_write, rates.nvme_write, nvme);
  set(Lane::host_to_device, rates.host_to_device, link);
  set(Lane::device_to_host, rates.device_to_host, link);
  if (!nvme.empty()) {
    rates.nvme_latency = median(nvme);
    if (drive_share_ < 1) {
      rates.nvme_both = drive_share_ * (rates.nvme_read + rates.nvme_write);
    }
  }
  if (!link.empty()) {
    rates.link_latency = median(link);
  }
}

double LearnedCosts::commit_seconds() const {
  std::vector<double> seconds;
  for (const Step& step : last_) {
    seconds.push_back(step.commit_seconds);
  }
  return median(std::move(seconds));
}

}  // namespace headrace::engine
