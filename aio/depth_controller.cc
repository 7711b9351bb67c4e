#include "aio/depth_controller.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::aio {

namespace {

constexpr double kGrowRatio = 1.03;
constexpr double kShrinkRatio = 0.99;

}  // namespace

DepthController::DepthController(int start, int least, int most)
    : current_(start), least_(least), most_(most) {
  HR_CHECK(1 <= least && least <= start && start <= most, "least={} start={} most={}", least, start,
           most);
  begin(Phase::grow);
}

/// The order within pairs alternates (A B, B A, A B), so that a drift of the device favours nobody.
bool DepthController::is_candidate() const {
  return phase_ != Phase::rest && (windows_ % 4 == 1 || windows_ % 4 == 2);
}

void DepthController::begin(Phase phase) {
  phase_ = phase;
  windows_ = 0;
  if (phase == Phase::grow) {
    candidate_ = static_cast<int>(std::min<int64_t>(int64_t{2} * current_, most_));
    if (candidate_ == current_) {
      begin(Phase::shrink);
    }
  } else if (phase == Phase::shrink) {
    candidate_ = std::max(current_ / 2, least_);
    if (candidate_ == current_) {
      begin(Phase::rest);
    }
  }
}

void DepthController::note_window(double rate) {
  if (phase_ == Phase::rest) {
    if (++windows_ == kRestWindows) {
      has_grown_ = false;
      begin(Phase::grow);
    }
    return;
  }
  const auto pair = static_cast<size_t>(windows_) / 2;
  (is_candidate() ? candidate_rates_ : current_rates_).at(pair) = rate;
  if (++windows_ == 2 * kPairs) {
    decide();
  }
}

void DepthController::decide() {
  std::array<double, kPairs> ratios{};
  for (size_t i = 0; i < ratios.size(); ++i) {
    ratios[i] = current_rates_[i] > 0 ? candidate_rates_[i] / current_rates_[i] : 1.0;
  }
  std::nth_element(ratios.begin(), ratios.begin() + kPairs / 2, ratios.end());
  const double ratio = ratios[kPairs / 2];
  if (phase_ == Phase::grow) {
    const bool grows = ratio > kGrowRatio;
    if (grows) {
      current_ = candidate_;
      has_grown_ = true;
    }
    begin(grows ? Phase::grow : has_grown_ ? Phase::rest : Phase::shrink);
    return;
  }
  const bool shrinks = ratio >= kShrinkRatio;
  if (shrinks) {
    current_ = candidate_;
  }
  begin(shrinks ? Phase::shrink : Phase::rest);
}

}  // namespace headrace::aio
