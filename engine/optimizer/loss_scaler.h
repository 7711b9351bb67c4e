#pragma once

#include <cstdint>

namespace headrace::engine {

/// DeepSpeed's "fp16" block. Not dynamic: the scale stays at `initial` (1 for bf16 and fp32).
struct LossScalerOptions {
  bool dynamic = false;
  double initial = 1;  ///< dynamic: 2^initial_scale_power
  double min = 1;      ///< min_loss_scale
  int64_t window_steps = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
};

/// What a checkpoint keeps of a LossScaler.
struct LossScalerState {
  double scale = 1;
  int64_t iteration = 0;                 ///< steps so far, skipped ones included
  int64_t last_overflow_iteration = -1;  ///< -1: none yet
  int64_t hysteresis_left = 0;
};

/// Loss scale with DeepSpeed's dynamics: halved after an overflow once the hysteresis is used up,
/// doubled after each `window_steps` good steps. Not thread-safe.
class LossScaler {
 public:
  /// Throws InputError naming the fp16 key that is out of range.
  explicit LossScaler(const LossScalerOptions& options);

  double scale() const { return state_.scale; }

  /// Tells how the step went; `overflow`: its gradients were not finite and it is skipped. Throws
  /// InputError where the scale would have to fall below the minimum: training has diverged.
  void update(bool overflow);

  const LossScalerState& state() const { return state_; }
  /// Goes on from the state of a checkpoint. Throws InputError if it is not a possible state.
  void restore(const LossScalerState& state);

 private:
  void on_overflow();
  void on_good_step();

  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace headrace::engine
