#pragma once

#include <cstdint>

namespace headrace::engine {

/// The learning rate over the run; DeepSpeed's WarmupLR, WarmupDecayLR and WarmupCosineLR.
struct LrScheduleOptions {
  enum class Kind : uint8_t { constant, warmup, warmup_decay, warmup_cosine };
  enum class Warmup : uint8_t { logarithmic, linear };

  Kind kind = Kind::constant;
  double base_lr = 1e-3;        ///< the optimizer's lr: constant and warmup_cosine
  double warmup_min_lr = 0;     ///< warmup, warmup_decay
  double warmup_max_lr = 1e-3;  ///< warmup, warmup_decay
  Warmup warmup = Warmup::logarithmic;
  int64_t warmup_num_steps = 1000;  ///< 0 and 1 count as 2, as in DeepSpeed
  int64_t total_num_steps = 0;      ///< warmup_decay, warmup_cosine
  double warmup_min_ratio = 0;      ///< warmup_cosine: share of base_lr
  double cos_min_ratio = 1e-4;      ///< warmup_cosine
};

/// A pure function of the step. Thread-safe.
///
/// DeepSpeed's schedulers hold a counter that starts at -1 and is advanced after each optimizer
/// step that was applied (one skipped for overflow does not count). The rate is a function of the
/// counter *before* it is advanced for that step: optimizer step s (from 0) uses counter s - 1. So
/// step 0 uses the rate "before the start" (warmup_min_lr; 0 for WarmupCosineLR), step 1 that of
/// iteration 0, which is the minimum again, and the maximum is reached at step warmup_num_steps
/// with warmup type log and at warmup_num_steps + 1 with linear.
class LrSchedule {
 public:
  /// Throws InputError naming the scheduler.params key that is out of range.
  explicit LrSchedule(const LrScheduleOptions& options);

  /// Learning rate of optimizer step `step`, counted from 0 over applied steps.
  double lr_at(int64_t step) const;

 private:
  double warmup_fraction(int64_t iteration) const;
  double cosine_ratio(int64_t iteration) const;

  LrScheduleOptions options_;
};

}  // namespace headrace::engine
