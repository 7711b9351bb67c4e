#include "engine/learned_costs.h"

#include <algorithm>

#include "base/check.h"
#include "base/median.h"

namespace headrace::engine {

namespace {

/// Weight of a step beside the next one.
constexpr double kFading = 0.6;

template <class Value>
void keep(std::deque<Value>& samples, Value value, size_t most) {
  samples.push_back(std::move(value));
  if (samples.size() > most) {
    samples.pop_front();
  }
}

}  // namespace

void LearnedCosts::note(const RunReport& report, double commit_seconds) {
  // The first step finds cold memory and new files: once there is another one, it does not count.
  if (++steps_ == 2) {
    operations_.clear();
    commits_.clear();
    lanes_ = {};
  }
  keep(operations_, report.operation_seconds, kSamples);
  keep(commits_, commit_seconds, kSamples);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    LaneSums& sums = lanes_[lane];
    for (double* sum : {&sums.count, &sums.bytes, &sums.seconds, &sums.reciprocal_bytes,
                        &sums.seconds_per_byte}) {
      *sum *= kFading;
    }
    for (const BusyPeriod& period : report.busy_periods[lane]) {
      const auto bytes = static_cast<double>(period.bytes);
      sums.count += 1;
      sums.bytes += bytes;
      sums.seconds += period.seconds;
      sums.reciprocal_bytes += 1 / bytes;
      sums.seconds_per_byte += period.seconds / bytes;
    }
  }
}

void LearnedCosts::apply_to(scheduler::Trace& trace) const {
  std::vector<double> samples(operations_.size());
  for (size_t i = 0; i < trace.operations.size(); ++i) {
    for (size_t step = 0; step < samples.size(); ++step) {
      HR_CHECK(operations_[step].size() == trace.operations.size(), "{} of {} operations",
               operations_[step].size(), trace.operations.size());
      samples[step] = operations_[step][i];
    }
    trace.operations[i].seconds = median(samples);
  }
}

/// Seconds = latency + bytes / rate over the busy periods (the transfers of a period share its
/// latency): least squares with weights 1 / bytes, so that short periods tell the latency, long
/// ones the rate, and the sum of all seconds comes out. Where periods are too much alike to tell
/// the two apart, all is rate.
LearnedCosts::LaneFit LearnedCosts::fit(const LaneSums& sums) {
  const double determinant = sums.reciprocal_bytes * sums.bytes - sums.count * sums.count;
  if (determinant > 0.01 * sums.count * sums.count) {
    const double latency =
        (sums.seconds_per_byte * sums.bytes - sums.seconds * sums.count) / determinant;
    const double slope = (sums.seconds - sums.count * latency) / sums.bytes;
    if (slope > 0 && latency > 0) {
      return {1 / slope, latency};
    }
  }
  return {sums.bytes / sums.seconds, 0};
}

void LearnedCosts::apply_to(scheduler::Rates& rates) const {
  using scheduler::Lane;
  const auto pair = [&](Lane up, double& up_rate, Lane down, double& down_rate, double& latency) {
    double latencies = 0;
    double count = 0;
    for (const auto& [lane, rate] : {std::pair{up, &up_rate}, std::pair{down, &down_rate}}) {
      const LaneSums& sums = lanes_[static_cast<size_t>(lane)];
      if (sums.bytes > 0 && sums.seconds > 0) {
        const LaneFit found = fit(sums);
        *rate = found.bytes_per_second;
        latencies += found.latency * sums.count;
        count += sums.count;
      }
    }
    if (count > 0) {
      latency = latencies / count;
    }
  };
  pair(Lane::nvme_read, rates.nvme_read, Lane::nvme_write, rates.nvme_write, rates.nvme_latency);
  pair(Lane::host_to_device, rates.host_to_device, Lane::device_to_host, rates.device_to_host,
       rates.link_latency);
}

double LearnedCosts::commit_seconds() const {
  return median({commits_.begin(), commits_.end()});
}

}  // namespace headrace::engine
