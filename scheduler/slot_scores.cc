#include "scheduler/slot_scores.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"

namespace headrace::scheduler {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct ScoreColumns {
  const double* keep_base;
  const double* keep_slope;
  const double* idle_from;
  const double* flush_seconds;
  const double* bar;
};

double larger(double a, double b) {
  return a < b ? b : a;
}

double smaller(double a, double b) {
  return a < b ? a : b;
}

// VictimScore and StallModel in plain numbers, a loop over arrays, so that it is vectorized.
// Compiled without contraction: the same bits on every machine.
// The loader chooses between clones before a sanitizer is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
double
price_columns(const ScoreColumns& columns, const WindowQuery& query, size_t count,
              double* __restrict costs) {
  const StallModel& stall = query.stall;
  const double usual_end = larger(stall.deadline, stall.lane_free + stall.transfer_seconds);
  for (size_t i = 0; i < count; ++i) {
    const double flush = columns.flush_seconds[i];
    const double idle = columns.idle_from[i];
    const double flushed = larger(idle, query.flush_lane_free) + flush;
    const double ready = flush > 0 ? flushed : idle;
    const double keep = larger(0, columns.keep_base[i] + columns.keep_slope[i] * query.now);
    const double late = larger(stall.lane_free, ready) + stall.transfer_seconds - usual_end;
    costs[i] = keep + (stall.lateness * ready + larger(0, late)) + columns.bar[i];
  }
  constexpr size_t kLanes = 8;
  double least[kLanes];
  for (double& lane : least) {
    lane = kInfinite;
  }
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      least[lane] = smaller(least[lane], costs[i + lane]);
    }
  }
  for (; i < count; ++i) {
    least[0] = smaller(least[0], costs[i]);
  }
  return *std::min_element(std::begin(least), std::end(least));
}

void replace_column(std::vector<double>& column, size_t first, size_t count,
                    std::span<const VictimScore> scores, double VictimScore::*part) {
  std::array<double, 3> parts{};
  HR_CHECK(scores.size() <= parts.size(), "{} segments at once", scores.size());
  std::transform(scores.begin(), scores.end(), parts.begin(),
                 [&](const VictimScore& score) { return score.*part; });
  replace_elements(column, first, count, std::span<const double>(parts).first(scores.size()));
}

}  // namespace

void SlotScores::set(size_t index, const VictimScore& score) {
  keep_base_[index] = score.keep_base;
  keep_slope_[index] = score.keep_slope;
  idle_from_[index] = score.idle_from;
  flush_seconds_[index] = score.flush_seconds;
}

void SlotScores::bar(size_t index, bool barred) {
  bar_[index] = barred ? kInfinite : 0;
}

void SlotScores::replace(size_t first, size_t count, std::span<const VictimScore> scores) {
  replace_column(keep_base_, first, count, scores, &VictimScore::keep_base);
  replace_column(keep_slope_, first, count, scores, &VictimScore::keep_slope);
  replace_column(idle_from_, first, count, scores, &VictimScore::idle_from);
  replace_column(flush_seconds_, first, count, scores, &VictimScore::flush_seconds);
  constexpr std::array<double, 3> kOpen{};
  replace_elements(bar_, first, count, std::span(kOpen).first(scores.size()));
}

double SlotScores::price(const WindowQuery& query, size_t begin, std::span<double> costs) const {
  const ScoreColumns columns{keep_base_.data() + begin, keep_slope_.data() + begin,
                             idle_from_.data() + begin, flush_seconds_.data() + begin,
                             bar_.data() + begin};
  return price_columns(columns, query, costs.size(), costs.data());
}

}  // namespace headrace::scheduler
