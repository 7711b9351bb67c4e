#pragma once

#include <array>

namespace headrace::aio {

/// Climbs to the smallest queue depth that reaches the best rate. A larger and then a smaller depth
/// (twice, half) are tried against the current one in alternated windows; the median of the ratios
/// decides. A larger one is taken when it brings more than 3 %, a smaller one when it loses no more
/// than 1 %: fewer bytes in flight mean a shorter wait for a demand read. In between it rests, and
/// tries again later, because loads and devices change. A pure function of what it is told.
class DepthController {
 public:
  /// 1 <= least <= start <= most.
  DepthController(int start, int least, int most);

  /// What the next window is to use.
  int depth() const { return is_candidate() ? candidate_ : current_; }
  /// The rate (any unit) of a window at depth().
  void note_window(double rate);
  /// The best depth known.
  int settled_depth() const { return current_; }

  static constexpr int kPairs = 3;         ///< windows of each side in a comparison
  static constexpr int kRestWindows = 64;  ///< between two climbs

 private:
  enum class Phase { grow, shrink, rest };

  bool is_candidate() const;
  void begin(Phase phase);
  void decide();

  int current_;
  int least_;
  int most_;
  int candidate_ = 0;
  Phase phase_ = Phase::rest;
  bool has_grown_ = false;  ///< in this climb: half of it is known to be slower
  int windows_ = 0;         ///< seen in this phase
  std::array<double, kPairs> current_rates_{};
  std::array<double, kPairs> candidate_rates_{};
};

}  // namespace headrace::aio
