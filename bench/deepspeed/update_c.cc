// The Adam update behind a C interface, for compare_adam.py.
#include <cstdint>
#include <exception>

#include "base/parallel.h"
#include "engine/optimizer/update.h"

extern "C" {

/// Laid out as AdamStep in compare_adam.py. Null pointers as in UpdateShard.
struct HeadraceAdamStep {
  int64_t count;
  int64_t step;
  double lr;
  double weight_decay;
  float* master;
  uint16_t* master_low;
  void* weight;  ///< bf16
  void* exp_avg;
  void* exp_avg_sq;
  const void* gradient;
  int32_t weight_is_master;
  int32_t moments_are_bf16;
  int32_t gradient_is_bf16;
};

/// One step of AdamW with the default betas and eps on `threads` threads. 0, or 1 for arguments
/// that update() refuses.
int headrace_adam_step(const HeadraceAdamStep* arguments, int threads) {
  namespace hr = headrace;
  const HeadraceAdamStep& a = *arguments;
  hr::engine::UpdateOptions options;
  options.step = a.step;
  options.lr = a.lr;
  options.weight_decay = a.weight_decay;
  hr::engine::UpdateShard shard;
  shard.master = a.master;
  shard.master_low = a.master_low;
  shard.weight = a.weight;
  shard.weight_is_master = a.weight_is_master != 0;
  shard.moment1 = a.exp_avg;
  shard.moment2 = a.exp_avg_sq;
  shard.moment_dtype = a.moments_are_bf16 != 0 ? hr::DType::bf16 : hr::DType::f32;
  shard.gradient = a.gradient;
  shard.gradient_dtype = a.gradient_is_bf16 != 0 ? hr::DType::bf16 : hr::DType::f32;
  shard.count = hr::Elements(a.count);
  try {
    hr::set_parallel_threads(threads);
    hr::engine::update(options, shard);
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}

}  // extern "C"
