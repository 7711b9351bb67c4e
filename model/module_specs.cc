#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "model/model_config.h"

namespace headrace::model {

namespace {

/// Packs parameters one after the other, each start aligned.
class ModuleBuilder {
 public:
  explicit ModuleBuilder(std::string name) { module_.name = std::move(name); }

  void add(std::string name, std::vector<int64_t> shape) {
    Elements count{1};
    for (const int64_t size : shape) {
      count = count * size;
    }
    add_part(std::move(name), std::move(shape), Elements(0), count);
  }

  /// Elements [first, first + count) of a parameter.
  void add_part(std::string name, std::vector<int64_t> shape, Elements first, Elements count) {
    module_.parameters.push_back({std::move(name), std::move(shape), module_.count, count, first});
    module_.count =
        Elements(align_up((module_.count + count).count(), kParameterAlignment.count()));
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

/// The tiles of a matrix over the vocabulary; not numbered where there is one.
void add_table(std::vector<ModuleSpec>& modules, const ModelConfig& config, int64_t tile_rows,
               const std::string& module, const std::string& name) {
  const int64_t hidden = config.hidden_size;
  for (int64_t first = 0; first < config.vocab_size; first += tile_rows) {
    const int64_t rows = std::min(tile_rows, config.vocab_size - first);
    ModuleBuilder builder(
        rows == config.vocab_size ? module : fmt::format("{}.{}", module, first / tile_rows));
    builder.add_part(name, {config.vocab_size, hidden}, Elements(first) * hidden,
                     Elements(rows) * hidden);
    modules.push_back(builder.take());
  }
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
  return tiled_module_specs(config, config.vocab_size);
}

std::vector<ModuleSpec> tiled_module_specs(const ModelConfig& config, int64_t tile_rows) {
  HR_CHECK(tile_rows > 0, "tiles of {} vocabulary entries", tile_rows);
  std::vector<ModuleSpec> modules;
  modules.reserve(static_cast<size_t>(config.layers) + 3);
  add_table(modules, config, tile_rows, "embed", "model.embed_tokens.weight");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    modules.push_back(block_spec(config, layer));
  }
  modules.push_back(single_parameter("norm", "model.norm.weight", {config.hidden_size}));
  if (!config.tie_word_embeddings) {
    add_table(modules, config, tile_rows, "head", "lm_head.weight");
  }
  return modules;
}

VocabularyRange vocabulary_range(const ModuleSpec& module) {
  const ParameterSpec& table = module.parameters.front();
  HR_CHECK(module.parameters.size() == 1 && table.shape.size() == 2,
           "module {} has no rows of the vocabulary", module.name);
  return {table.first / Elements(table.shape[1]), table.count / Elements(table.shape[1])};
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
