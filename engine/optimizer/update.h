#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/units.h"

namespace headrace::engine {

enum class OptimizerKind : uint8_t {
  adam,     ///< torch.optim.AdamW (decoupled) or torch.optim.Adam
  adagrad,  ///< torch.optim.Adagrad
  lion,     ///< Chen et al. 2023, algorithm 2; as DeepSpeed's Lion
  sgd,      ///< torch.optim.SGD
};

/// One step of an optimizer; fields that a kind does not use are not read.
struct UpdateOptions {
  OptimizerKind kind = OptimizerKind::adam;
  double lr = 1e-3;
  double beta1 = 0.9;     ///< adam, lion
  double beta2 = 0.999;   ///< adam, lion
  double eps = 1e-8;      ///< adam, adagrad
  double lr_decay = 0;    ///< adagrad: lr / (1 + (step - 1) * lr_decay)
  double momentum = 0;    ///< sgd; 0: no moment array
  double dampening = 0;   ///< sgd
  bool nesterov = false;  ///< sgd
  double weight_decay = 0;
  bool decoupled_weight_decay = true;  ///< adam: AdamW; adagrad and sgd add it to the gradient,
                                       ///< lion is always decoupled
  bool bias_correction = true;         ///< adam
  int64_t step = 1;                    ///< 1 for the first update
  float gradient_scale = 1;            ///< multiplies the gradient: 1 / (loss scale * clip divisor)
  uint64_t seed = 0;                   ///< of the stochastic rounding of 8-bit moments
};

/// Moment arrays of a kind: 0, 1 or 2.
int moment_count(OptimizerKind kind, double momentum);
/// Adagrad's sum only grows, so a rounding of it is never forgotten.
bool has_8bit_moments(OptimizerKind kind);

/// Arrays of `count` elements, each aligned to an element; none may overlap another. The fp32
/// master is in one of three places: `master`; split in `weight` (its bf16 weight) and `master_low`
/// (base/split_float.h); or, training in fp32, `master` is the weight itself and `weight` is null.
/// Without any (weight_is_master), the bf16 weight is all there is and every step rounds it.
/// Moments are fp32; bf16, rounded to nearest even; or u8, the codes of moment_codes.h, rounded
/// stochastically, with a scale byte per block. Then the first element begins a block.
struct UpdateShard {
  float* master = nullptr;             ///< null: split
  uint16_t* master_low = nullptr;      ///< the half that completes the bf16 weight; null: not split
  void* weight = nullptr;              ///< where not null: gets the new 16-bit weight
  DType weight_dtype = DType::bf16;    ///< bf16 or f16; bf16 where split or the master itself
  bool weight_is_master = false;       ///< neither master nor master_low is there
  void* moment1 = nullptr;             ///< adam exp_avg; adagrad sum; lion exp_avg; sgd buffer
  void* moment2 = nullptr;             ///< adam exp_avg_sq
  DType moment_dtype = DType::f32;     ///< f32, bf16 or u8
  uint8_t* scale1 = nullptr;           ///< u8: of moment1
  uint8_t* scale2 = nullptr;           ///< u8: of moment2
  int64_t first_element = 0;           ///< u8: number of the first element in the model
  const void* gradient = nullptr;      ///< before gradient_scale
  DType gradient_dtype = DType::f32;   ///< f32, bf16 or f16
  const float* accumulated = nullptr;  ///< where not null: added to the gradient, before the scale
  Elements count;
};

/// What a pass saw.
struct UpdateResult {
  bool all_finite = true;  ///< every new master and moment value is finite, so every input was
};

/// Updates master, moments and weight in one pass over memory, on the OpenMP threads of the calling
/// thread. The same bits for any number of threads, instruction set, alignment and split of the
/// shard (but for the payload of NaNs): nothing is fused that is not fused everywhere. Thread-safe
/// for different shards. Broken preconditions are InternalErrors.
UpdateResult update(const UpdateOptions& options, const UpdateShard& shard);

}  // namespace headrace::engine
