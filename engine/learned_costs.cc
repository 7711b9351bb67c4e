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
    for (double* sum :
         {&sums.count, &sums.bytes, &sums.seconds, &sums.bytes_squared, &sums.bytes_seconds}) {
      *sum *= kFading;
    }
    for (const BusyPeriod& period : report.busy_periods[lane]) {
      const auto bytes = static_cast<double>(period.bytes);
      sums.count += 1;
      sums.bytes += bytes;
      sums.seconds += period.seconds;
      sums.bytes_squared += bytes * bytes;
      sums.bytes_seconds += bytes * period.seconds;
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

/// Least squares of seconds = latency + bytes / rate over the busy periods: the transfers of a
/// period share its latency. Where periods are too much alike to tell the two apart, all is rate.
LearnedCosts::LaneFit LearnedCosts::fit(const LaneSums& sums) {
  LaneFit fit{sums.bytes / sums.seconds, 0};
  const double mean_bytes = sums.bytes / sums.count;
  const double mean_seconds = sums.seconds / sums.count;
  const double variance = sums.bytes_squared / sums.count - mean_bytes * mean_bytes;
  if (variance < 0.01 * mean_bytes * mean_bytes) {
    return fit;
  }
  const double slope = (sums.bytes_seconds / sums.count - mean_bytes * mean_seconds) / variance;
  const double latency = mean_seconds - slope * mean_bytes;
  if (slope > 0 && latency > 0) {
    fit = {1 / slope, latency};
  }
  return fit;
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
