#include "engine/optimizer/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace headrace::engine {
namespace {

constexpr double kFactor = 2.0;

void require(bool condition, const char* key, double value, const char* accepted) {
  if (!condition) {
    throw InputError(fmt::format("fp16.{} is {}; it must be {}", key, value, accepted));
  }
}

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options) {
  const char* scale_key = options.dynamic ? "initial_scale_power" : "loss_scale";
  require(std::isfinite(options.initial) && options.initial > 0, scale_key, options.initial,
          "a positive finite scale");
  if (options.dynamic) {
    require(std::isfinite(options.min) && options.min > 0, "min_loss_scale", options.min,
            "positive and finite");
    require(options.window_steps > 0, "loss_scale_window",
            static_cast<double>(options.window_steps), "at least 1");
    require(options.hysteresis > 0, "hysteresis", static_cast<double>(options.hysteresis),
            "at least 1");
  }
  state_.scale = options.initial;
  state_.hysteresis_left = options.hysteresis;
}

void LossScaler::update(bool overflow) {
  if (options_.dynamic) {
    if (overflow) {
      on_overflow();
    } else {
      on_good_step();
    }
  }
  ++state_.iteration;
}

void LossScaler::on_overflow() {
  if (options_.hysteresis == 1 || state_.hysteresis_left == 1) {
    if (state_.scale == options_.min) {
      throw InputError(fmt::format(
          "gradients are not finite at step {} although the loss scale is at its minimum "
          "(fp16.min_loss_scale = {}): training has diverged. Lower the learning rate, clip "
          "gradients (gradient_clipping), or train in bf16",
          state_.iteration, options_.min));
    }
    state_.scale = std::max(state_.scale / kFactor, options_.min);
  } else {
    --state_.hysteresis_left;
  }
  state_.last_overflow_iteration = state_.iteration;
}

void LossScaler::on_good_step() {
  if (options_.consecutive_hysteresis) {
    state_.hysteresis_left = options_.hysteresis;
  }
  const int64_t good_steps = state_.iteration - state_.last_overflow_iteration - 1;
  if (good_steps > 0 && good_steps % options_.window_steps == 0) {
    state_.hysteresis_left = options_.hysteresis;
    state_.scale *= kFactor;
  }
}

void LossScaler::restore(const LossScalerState& state) {
  const bool possible = std::isfinite(state.scale) && state.scale > 0 && state.iteration >= 0 &&
                        state.last_overflow_iteration >= -1 &&
                        state.last_overflow_iteration < std::max<int64_t>(1, state.iteration) &&
                        state.hysteresis_left >= 1;
  if (!possible) {
    throw InputError(fmt::format(
        "the checkpoint's loss scale state is damaged: scale {}, iteration {}, last "
        "overflow {}, hysteresis {}",
        state.scale, state.iteration, state.last_overflow_iteration, state.hysteresis_left));
  }
  state_ = state;
}

}  // namespace headrace::engine
