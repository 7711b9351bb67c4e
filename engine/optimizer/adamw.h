#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/units.h"

namespace headrace::engine {

/// One step of torch.optim.AdamW (adam_w_mode) or torch.optim.Adam (otherwise, weight decay added
/// to the gradient).
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool adam_w_mode = true;
  bool bias_correction = true;
  int64_t step = 1;          ///< 1 for the first update
  float gradient_scale = 1;  ///< multiplies the gradient: 1 / (loss scale * clip divisor)
};

/// Arrays of `count` elements, aligned to an element; none may overlap another.
struct AdamWShard {
  float* master = nullptr;           ///< fp32 weights
  float* exp_avg = nullptr;          ///< first moment
  float* exp_avg_sq = nullptr;       ///< second moment
  const float* gradient = nullptr;   ///< before gradient_scale
  void* weight = nullptr;            ///< where not null: the new master, rounded to weight_dtype
  DType weight_dtype = DType::bf16;  ///< bf16 or f16
  Elements count;
};

/// Updates master, exp_avg, exp_avg_sq and weight in one pass over memory, on the OpenMP threads of
/// the calling thread. The same bits for any number of threads, instruction set, alignment and
/// split of the shard (but for the payload of NaNs): there is no fused multiply-add in it.
/// Thread-safe for different shards. Broken preconditions are InternalErrors.
void adamw_update(const AdamWOptions& options, const AdamWShard& shard);

}  // namespace headrace::engine
