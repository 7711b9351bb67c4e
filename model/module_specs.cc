#include <fmt/format.h>

#include "model/model_config.h"

namespace headrace::model {

namespace {

constexpr Elements kAlignment{64};

/// Packs parameters one after the other, each start aligned.
class ModuleBuilder {
 public:
  explicit ModuleBuilder(std::string name) { module_.name = std::move(name); }

  void add(std::string name, std::vector<int64_t> shape) {
    Elements count{1};
    for (const int64_t size : shape) {
      count = count * size;
    }
    module_.parameters.push_back({std::move(name), std::move(shape), module_.count, count});
    module_.count = Elements(align_up((module_.count + count).count(), kAlignment.count()));
  }

  /// "<name>.weight" [outputs, inputs] and, if asked for, "<name>.bias" [outputs].
  void add_linear(const std::string& name, int64_t outputs, int64_t inputs, bool with_bias) {
    add(name + ".weight", {outputs, inputs});
    if (with_bias) {
      add(name + ".bias", {outputs});
    }
  }

  ModuleSpec take() { return std::move(module_); }

 private:
  ModuleSpec module_;
};

ModuleSpec single_parameter(std::string module, std::string name, std::vector<int64_t> shape) {
  ModuleBuilder builder(std::move(module));
  builder.add(std::move(name), std::move(shape));
  return builder.take();
}

ModuleSpec block_spec(const ModelConfig& config, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = config.heads * config.head_dim;
  const int64_t kv_size = config.kv_heads * config.head_dim;
  ModuleBuilder builder(fmt::format("block.{}", layer));
  builder.add(prefix + "input_layernorm.weight", {hidden});
  builder.add_linear(attention + "q_proj", q_size, hidden, config.attention_bias);
  builder.add_linear(attention + "k_proj", kv_size, hidden, config.attention_bias);
  builder.add_linear(attention + "v_proj", kv_size, hidden, config.attention_bias);
  builder.add_linear(attention + "o_proj", hidden, q_size, config.output_bias);
  if (config.qk_norm) {
    builder.add(attention + "q_norm.weight", {config.head_dim});
    builder.add(attention + "k_norm.weight", {config.head_dim});
  }
  builder.add(prefix + "post_attention_layernorm.weight", {hidden});
  builder.add_linear(mlp + "gate_proj", config.intermediate_size, hidden, config.mlp_bias);
  builder.add_linear(mlp + "up_proj", config.intermediate_size, hidden, config.mlp_bias);
  builder.add_linear(mlp + "down_proj", hidden, config.intermediate_size, config.mlp_bias);
  return builder.take();
}

}  // namespace

std::vector<ModuleSpec> module_specs(const ModelConfig& config) {
  const std::vector<int64_t> table = {config.vocab_size, config.hidden_size};
  std::vector<ModuleSpec> modules;
  modules.reserve(static_cast<size_t>(config.layers) + 3);
  modules.push_back(single_parameter("embed", "model.embed_tokens.weight", table));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    modules.push_back(block_spec(config, layer));
  }
  modules.push_back(single_parameter("norm", "model.norm.weight", {config.hidden_size}));
  if (!config.tie_word_embeddings) {
    modules.push_back(single_parameter("head", "lm_head.weight", table));
  }
  return modules;
}

Elements parameter_count(const ModelConfig& config) {
  Elements total;
  for (const ModuleSpec& module : module_specs(config)) {
    for (const ParameterSpec& parameter : module.parameters) {
      total += parameter.count;
    }
  }
  return total;
}

}  // namespace headrace::model
