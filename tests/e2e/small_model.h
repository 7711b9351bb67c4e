#pragma once

#include "model/model_config.h"

namespace headrace::test {

/// Trains in no time. Its sizes are no multiples of tiles or lanes.
inline model::ModelConfig small_model(int64_t layers = 3) {
  model::ModelConfig config;
  config.family = model::Family::qwen3;
  config.vocab_size = 301;
  config.hidden_size = 96;
  config.intermediate_size = 200;
  config.layers = layers;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.max_positions = 64;
  config.qk_norm = true;
  return config;
}

}  // namespace headrace::test
