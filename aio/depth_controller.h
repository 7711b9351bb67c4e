#pragma once

#include <optional>
#include <vector>

namespace headrace::aio {

/// Climbs to the smallest queue depth that reaches the best rate. A larger and then a smaller depth
/// (twice, half) are tried against the current one in alternated windows. A larger one is taken
/// when it brings more than 3 %, a smaller one when it loses no more than 1.5 %: fewer bytes in
/// flight mean a shorter wait for each of them. One pair of windows is as noisy as a shared drive
/// (some 7 %), so three quarters of the pairs must agree, or the median of many decides. In between
/// it rests, and tries again later, because loads and devices change. A pure function of what it is
/// told.
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

  static constexpr int kPairsMin = 3;  ///< windows of each side in a comparison
  static constexpr int kPairsMax = 31;
  static constexpr int kRestWindows = 256;  ///< between two climbs

 private:
  enum class Phase { grow, shrink, rest };

  bool is_candidate() const;
  void begin(Phase phase);
  std::optional<bool> is_above(double border) const;
  void decide();

  int current_;
  int least_;
  int most_;
  int candidate_ = 0;
  Phase phase_ = Phase::rest;
  bool has_grown_ = false;      ///< in this climb: half of it is known to be slower
  int windows_ = 0;             ///< seen in this phase
  double first_rate_ = 0;       ///< of the pair under way
  std::vector<double> ratios_;  ///< candidate to current, of the pairs so far
};

}  // namespace headrace::aio
