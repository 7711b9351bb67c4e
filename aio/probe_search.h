#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/io.h"

namespace headrace::aio {

/// Bytes per second; mixed is the sum of as many reads as writes at once, which is what an
/// optimizer pass over nvme does.
struct Rates {
  double read = 0;
  double write = 0;
  double mixed = 0;
};

struct Latency {
  double p50_ms = 0;
  double p99_ms = 0;
  double p999_ms = 0;
  int64_t transfers = 0;  ///< that these are of: p99.9 of fewer than 1000 is the longest
};

/// One block size and queue depth; rates are medians over the rounds.
struct ProbePoint {
  Bytes block_size;
  int queue_depth = 0;
  Rates rates{};
  Latency read_latency{};
  Latency write_latency{};
  bool is_measured = false;
  std::string left_out{};  ///< why it was not measured

  Bytes in_flight() const { return block_size * queue_depth; }
};

/// The settings to try.
std::vector<ProbePoint> points_for(bool quick);

/// Mixed rate plus the mean of read and write rate.
double score(const Rates& rates);

/// The best point: among those within 5 % of the highest score, the one with the fewest bytes in
/// flight. CapacityError when none was measured.
size_t best_point(const std::vector<ProbePoint>& points);

/// Indices of up to `count` points, measured by one load each, that deserve more: the one with the
/// fewest bytes in flight within 15 % of the highest score, the best point, then those with the
/// highest scores.
std::vector<size_t> finalists(const std::vector<ProbePoint>& points, size_t count);

/// Percentiles of transfer times, by rank.
Latency latency_of(std::vector<double> milliseconds);

/// What several rounds at one point gave.
struct PointSamples {
  std::vector<double> read_rates;
  std::vector<double> write_rates;
  std::vector<double> mixed_rates;
  std::vector<double> read_ms;
  std::vector<double> write_ms;

  /// Medians and percentiles into `point`.
  void summarize(ProbePoint& point) const;
  std::vector<double> scores() const;  ///< by round
};

/// The best of some points that have played the same rounds by turns, an index of `points`. More
/// bytes in flight must be worth it: a point beats one with fewer where its score is 5 % higher in
/// the median of the rounds, and higher in each, for on a drive that is shared one round says
/// little. Points without a complete round do not count, unless there is no other.
size_t best_of(const std::vector<ProbePoint>& points, const std::vector<PointSamples>& samples,
               std::vector<size_t> some);

}  // namespace headrace::aio
