#include "aio/probe_search.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/median.h"

namespace headrace::aio {

namespace {

constexpr double kTolerance = 0.05;  ///< two scores this close are equal: rates move more than that
constexpr double kSingleTolerance = 0.15;  ///< and two that are of one load each

/// Among the measured points whose score is within the tolerance of the highest, the one with the
/// fewest bytes in flight.
size_t smallest_of_the_best(const std::vector<ProbePoint>& points, double tolerance) {
  double highest = -1;
  for (const ProbePoint& point : points) {
    highest = point.is_measured ? std::max(highest, score(point.rates)) : highest;
  }
  if (highest < 0) {
    throw CapacityError("the probe measured nothing: give it more time or memory");
  }
  size_t best = points.size();
  for (size_t i = 0; i < points.size(); ++i) {
    if (!points[i].is_measured || score(points[i].rates) < (1 - tolerance) * highest) {
      continue;
    }
    if (best == points.size() || points[i].in_flight() < points[best].in_flight()) {
      best = i;
    }
  }
  return best;
}

/// Whether a point with these scores is to be taken instead of one with fewer bytes in flight.
bool beats(const std::vector<double>& scores, const std::vector<double>& smaller) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(scores.size(), smaller.size()); ++i) {
    ratios.push_back(scores[i] / smaller[i]);
  }
  if (ratios.empty()) {
    return smaller.empty() && !scores.empty();
  }
  return *std::min_element(ratios.begin(), ratios.end()) > 1 && median(ratios) > 1 + kTolerance;
}

}  // namespace

std::vector<ProbePoint> points_for(bool quick) {
  std::vector<ProbePoint> points;
  const auto add = [&](Bytes block, int depth) {
    points.push_back(ProbePoint{.block_size = block, .queue_depth = depth});
  };
  if (quick) {
    add(kMiB, 8);
    add(kMiB, 32);
    add(kMiB, 128);
    add(kMiB * 4, 32);
    add(kMiB * 8, 32);
    return points;
  }
  for (const Bytes block : {kKiB * 256, kMiB, kMiB * 4, kMiB * 8}) {
    for (const int depth : {8, 32, 128}) {
      add(block, depth);
    }
  }
  add(kMiB, 256);
  return points;
}

double score(const Rates& rates) {
  return rates.mixed + (rates.read + rates.write) / 2;
}

size_t best_point(const std::vector<ProbePoint>& points) {
  return smallest_of_the_best(points, kTolerance);
}

std::vector<size_t> finalists(const std::vector<ProbePoint>& points, size_t count) {
  const size_t smallest = smallest_of_the_best(points, kSingleTolerance);
  const size_t best = best_point(points);
  const auto rank = [&](size_t i) { return i == smallest ? 0 : i == best ? 1 : 2; };
  std::vector<size_t> order;
  order.reserve(points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].is_measured) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return rank(a) != rank(b) ? rank(a) < rank(b) : score(points[a].rates) > score(points[b].rates);
  });
  order.resize(std::min(order.size(), count));
  return order;
}

Latency latency_of(std::vector<double> milliseconds) {
  if (milliseconds.empty()) {
    return {};
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto count = static_cast<int64_t>(milliseconds.size());
  // The smallest value that at least `permille` of a thousand values do not exceed.
  const auto at = [&](int64_t permille) {
    return milliseconds[static_cast<size_t>((count * permille + 999) / 1000 - 1)];
  };
  return {.p50_ms = at(500), .p99_ms = at(990), .p999_ms = at(999), .transfers = count};
}

void PointSamples::summarize(ProbePoint& point) const {
  point.rates = {
      .read = median(read_rates), .write = median(write_rates), .mixed = median(mixed_rates)};
  point.read_latency = latency_of(read_ms);
  point.write_latency = latency_of(write_ms);
}

std::vector<double> PointSamples::scores() const {
  const size_t rounds = std::min({read_rates.size(), write_rates.size(), mixed_rates.size()});
  std::vector<double> all;
  all.reserve(rounds);
  for (size_t i = 0; i < rounds; ++i) {
    all.push_back(score({.read = read_rates[i], .write = write_rates[i], .mixed = mixed_rates[i]}));
  }
  return all;
}

size_t best_of(const std::vector<ProbePoint>& points, const std::vector<PointSamples>& samples,
               std::vector<size_t> some) {
  std::stable_sort(some.begin(), some.end(), [&](size_t a, size_t b) {
    return points.at(a).in_flight() < points.at(b).in_flight();
  });
  size_t best = some.at(0);
  for (const size_t i : some) {
    if (beats(samples.at(i).scores(), samples.at(best).scores())) {
      best = i;
    }
  }
  return best;
}

}  // namespace headrace::aio
