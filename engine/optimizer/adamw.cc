#include "engine/optimizer/adamw.h"

#include "engine/optimizer/update.h"

namespace headrace::engine {

void adamw_update(const AdamWOptions& options, const AdamWShard& shard) {
  UpdateOptions o;
  o.lr = options.lr;
  o.beta1 = options.beta1;
  o.beta2 = options.beta2;
  o.eps = options.eps;
  o.weight_decay = options.weight_decay;
  o.decoupled_weight_decay = options.adam_w_mode;
  o.bias_correction = options.bias_correction;
  o.step = options.step;
  o.gradient_scale = options.gradient_scale;
  UpdateShard s;
  s.master = shard.master;
  s.moment1 = shard.exp_avg;
  s.moment2 = shard.exp_avg_sq;
  s.gradient = shard.gradient;
  s.weight = shard.weight;
  s.weight_dtype = shard.weight_dtype;
  s.count = shard.count;
  update(o, s);
}

}  // namespace headrace::engine
