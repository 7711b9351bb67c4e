#include "aio/depth_controller.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::aio {

namespace {

constexpr double kGrowRatio = 1.03;
constexpr double kShrinkRatio = 0.985;

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
  ratios_.clear();
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
  const bool is_second = windows_ % 2 == 1;
  if (is_second) {
    const double current = is_candidate() ? first_rate_ : rate;
    const double candidate = is_candidate() ? rate : first_rate_;
    ratios_.push_back(current > 0 ? candidate / current : 1.0);
  }
  first_rate_ = rate;
  ++windows_;
  if (is_second && ratios_.size() >= kPairsMin) {
    decide();
  }
}

/// Whether the candidate's ratio is above the border; none: more pairs are needed.
std::optional<bool> DepthController::is_above(double border) const {
  const auto above =
      std::count_if(ratios_.begin(), ratios_.end(), [&](double ratio) { return ratio > border; });
  const auto pairs = static_cast<int64_t>(ratios_.size());
  if (4 * above > 3 * pairs || 4 * above < pairs) {
    return 2 * above > pairs;
  }
  return pairs < kPairsMax ? std::nullopt : std::optional(2 * above > pairs);
}

void DepthController::decide() {
  const std::optional<bool> takes = is_above(phase_ == Phase::grow ? kGrowRatio : kShrinkRatio);
  if (!takes) {
    return;
  }
  if (*takes) {
    current_ = candidate_;
    has_grown_ = has_grown_ || phase_ == Phase::grow;
    begin(phase_);
  } else {
    begin(phase_ == Phase::grow && !has_grown_ ? Phase::shrink : Phase::rest);
  }
}

}  // namespace headrace::aio
