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

// A loop over arrays, which the compiler vectorizes: see CMakeLists.txt. The loader chooses between
// clones before a sanitizer is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
double
price_columns(const ScoreColumns& columns, const WindowQuery& query, size_t count,
              double* __restrict costs) {
  for (size_t i = 0; i < count; ++i) {
    const VictimScore score{columns.keep_base[i], columns.keep_slope[i], columns.idle_from[i],
                            columns.flush_seconds[i]};
    costs[i] = score.keep(query.now) + query.stall.stall(score.ready(query.flush_lane_free)) +
               columns.bar[i];
  }
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> least;
  least.fill(kInfinite);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      least[lane] = std::min(least[lane], costs[i + lane]);
    }
  }
  for (; i < count; ++i) {
    least[0] = std::min(least[0], costs[i]);
  }
  return *std::min_element(least.begin(), least.end());
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
