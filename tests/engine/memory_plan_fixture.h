#pragma once

#include <optional>

#include "engine/memory_plan.h"

namespace headrace::engine {

inline model::ModelConfig small_model(bool tied) {
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.vocab_size = 500;
  config.hidden_size = 128;
  config.intermediate_size = 384;
  config.layers = 4;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.max_positions = 128;
  config.tie_word_embeddings = tied;
  return config;
}

inline constexpr model::BatchShape kShape{2, 64};
inline const NetworkNeeds kNeeds{kMiB, kKiB * 16};

inline MemoryRequest request_of(std::optional<Tier> param, std::optional<Tier> optimizer,
                                bool nvme_activations) {
  MemoryRequest request;
  request.device_memory = kMiB * 64;
  request.host_memory = kMiB * 64;
  request.has_nvme = true;
  request.nvme_budget = kGiB;
  request.offload_param = param;
  request.offload_optimizer = optimizer;
  request.nvme_activations = nvme_activations;
  request.micro_batches = 2;
  return request;
}

inline MemoryPlan plan(const model::ModelConfig& config, DType dtype,
                       const MemoryRequest& request) {
  return make_memory_plan(config, dtype, kShape, kNeeds, WorkEstimate(), request);
}

}  // namespace headrace::engine
