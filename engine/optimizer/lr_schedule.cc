#include "engine/optimizer/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::engine {

using Kind = LrScheduleOptions::Kind;

LrSchedule::LrSchedule(const LrScheduleOptions& options) : options_(options) {
  if (options_.kind == Kind::constant) {
    return;
  }
  if (options_.warmup_num_steps < 0) {
    throw InputError(fmt::format("scheduler.params.warmup_num_steps is {}; it must not be negative",
                                 options_.warmup_num_steps));
  }
  options_.warmup_num_steps = std::max<int64_t>(2, options_.warmup_num_steps);
  if (options_.kind == Kind::warmup) {
    return;
  }
  if (options_.total_num_steps < 1) {
    throw InputError(fmt::format("scheduler.params.total_num_steps is {}; it must be at least 1",
                                 options_.total_num_steps));
  }
  if (options_.total_num_steps < options_.warmup_num_steps) {
    log_warning(
        "scheduler.params.total_num_steps ({}) is less than warmup_num_steps ({}): the learning "
        "rate falls to its minimum as soon as the warm-up ends",
        options_.total_num_steps, options_.warmup_num_steps);
  }
}

double LrSchedule::lr_at(int64_t step) const {
  HR_CHECK(step >= 0, "learning rate of step {}", step);
  const LrScheduleOptions& o = options_;
  const int64_t iteration = step - 1;
  const double range = o.warmup_max_lr - o.warmup_min_lr;
  switch (o.kind) {
    case Kind::constant:
      return o.base_lr;
    case Kind::warmup:
      if (iteration < 0) {
        return o.warmup_min_lr;
      }
      return o.warmup_min_lr + range * warmup_fraction(iteration);
    case Kind::warmup_decay: {
      if (iteration < 0) {
        return o.warmup_min_lr;
      }
      if (iteration < o.warmup_num_steps) {
        return o.warmup_min_lr + range * warmup_fraction(iteration);
      }
      const auto left = static_cast<double>(o.total_num_steps - iteration);
      const auto decay_steps =
          static_cast<double>(std::max<int64_t>(1, o.total_num_steps - o.warmup_num_steps));
      return o.warmup_min_lr + range * std::max(0.0, left / decay_steps);
    }
    case Kind::warmup_cosine:
      return iteration < 0 ? 0.0 : o.base_lr * cosine_ratio(iteration);
  }
  HR_CHECK(false, "unknown kind of learning rate schedule {}", static_cast<int>(o.kind));
}

double LrSchedule::warmup_fraction(int64_t iteration) const {
  if (iteration >= options_.warmup_num_steps) {
    return 1.0;
  }
  const auto steps = static_cast<double>(options_.warmup_num_steps);
  if (options_.warmup == LrScheduleOptions::Warmup::linear) {
    return static_cast<double>(iteration) / steps;
  }
  return std::log(static_cast<double>(iteration + 1)) / std::log(steps);
}

double LrSchedule::cosine_ratio(int64_t iteration) const {
  const LrScheduleOptions& o = options_;
  if (iteration < o.warmup_num_steps) {
    return o.warmup_min_ratio + (1.0 - o.warmup_min_ratio) * warmup_fraction(iteration);
  }
  const auto done = static_cast<double>(iteration - o.warmup_num_steps + 1);
  const auto decay_steps =
      static_cast<double>(std::max<int64_t>(1, o.total_num_steps - o.warmup_num_steps));
  // After the end the rate stays at its minimum.
  const double progress = std::min(1.0, done / decay_steps);
  const double cosine = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
  return std::max(0.0, o.cos_min_ratio + (1.0 - o.cos_min_ratio) * cosine);
}

}  // namespace headrace::engine
