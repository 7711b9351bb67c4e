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

  /// Rows [rows.first, rows.end()) of a matrix [outputs, inputs] and of its bias.
  void add_rows(const std::string& name, const TileRange& rows, int64_t outputs, int64_t inputs,
                bool with_bias) {
    add_part(name + ".weight", {outputs, inputs}, Elements(rows.first) * inputs,
             Elements(rows.count) * inputs);
    if (with_bias) {
      add_part(name + ".bias", {outputs}, Elements(rows.first), Elements(rows.count));
    }
  }

  /// Columns of a matrix [outputs, inputs].
  void add_columns(const std::string& name, const TileRange& columns, int64_t outputs,
                   int64_t inputs) {
    add_part(name + ".weight", {outputs, inputs}, Elements(columns.first),
             Elements(outputs) * columns.count);
    module_.parameters.back().columns = columns.count == inputs ? 0 : columns.count;
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

TileRange tile_range(int64_t size, int64_t per_tile, int64_t tile) {
  return {tile * per_tile, std::min(per_tile, size - tile * per_tile)};
}

void add_block(std::vector<ModuleSpec>& modules, const ModelConfig& config, int64_t layer,
               const BlockCut& cut) {
  if (!cut.is_cut()) {
    modules.push_back(block_spec(config, layer));
    return;
  }
  modules.push_back(attention_norms_spec(config, layer));
  for (int64_t tile = 0; tile < cut.attention_tiles(config); ++tile) {
    modules.push_back(attention_tile_spec(config, layer, tile, attention_range(config, cut, tile)));
  }
  modules.push_back(mlp_norms_spec(config, layer));
  for (int64_t tile = 0; tile < cut.mlp_tiles(config); ++tile) {
    modules.push_back(mlp_tile_spec(config, layer, tile, mlp_range(config, cut, tile)));
  }
}

}  // namespace

TensorPart ParameterSpec::part() const {
  return TensorPart::of(first.count(), count.count(), columns, columns == 0 ? 0 : shape.back());
}

int64_t BlockCut::attention_tiles(const ModelConfig& config) const {
  return is_cut() ? ceil_div(config.kv_heads, kv_heads) : 0;
}

int64_t BlockCut::mlp_tiles(const ModelConfig& config) const {
  return is_cut() ? ceil_div(config.intermediate_size, mlp_rows) : 0;
}

TileRange attention_range(const ModelConfig& config, const BlockCut& cut, int64_t tile) {
  return tile_range(config.kv_heads, cut.kv_heads, tile);
}

TileRange kv_rows(const ModelConfig& config, const TileRange& kv_heads) {
  return {kv_heads.first * config.head_dim, kv_heads.count * config.head_dim};
}

TileRange q_rows(const ModelConfig& config, const TileRange& kv_heads) {
  const int64_t per_kv_head = config.heads / config.kv_heads * config.head_dim;
  return {kv_heads.first * per_kv_head, kv_heads.count * per_kv_head};
}

TileRange mlp_range(const ModelConfig& config, const BlockCut& cut, int64_t tile) {
  return tile_range(config.intermediate_size, cut.mlp_rows, tile);
}

ModuleSpec attention_norms_spec(const ModelConfig& config, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  ModuleBuilder builder(fmt::format("block.{}.attention.norms", layer));
  builder.add(prefix + "input_layernorm.weight", {config.hidden_size});
  if (config.output_bias) {
    builder.add(prefix + "self_attn.o_proj.bias", {config.hidden_size});
  }
  if (config.qk_norm) {
    builder.add(prefix + "self_attn.q_norm.weight", {config.head_dim});
    builder.add(prefix + "self_attn.k_norm.weight", {config.head_dim});
  }
  return builder.take();
}

ModuleSpec mlp_norms_spec(const ModelConfig& config, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  ModuleBuilder builder(fmt::format("block.{}.mlp.norms", layer));
  builder.add(prefix + "post_attention_layernorm.weight", {config.hidden_size});
  if (config.mlp_bias) {
    builder.add(prefix + "mlp.down_proj.bias", {config.hidden_size});
  }
  return builder.take();
}

ModuleSpec attention_tile_spec(const ModelConfig& config, int64_t layer, int64_t tile,
                               const TileRange& kv_heads) {
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  const int64_t hidden = config.hidden_size;
  const int64_t kv_size = config.kv_heads * config.head_dim;
  const int64_t q_size = config.heads * config.head_dim;
  const TileRange q = q_rows(config, kv_heads);
  const TileRange kv = kv_rows(config, kv_heads);
  ModuleBuilder builder(fmt::format("block.{}.attention.{}", layer, tile));
  builder.add_rows(prefix + "q_proj", q, q_size, hidden, config.attention_bias);
  builder.add_rows(prefix + "k_proj", kv, kv_size, hidden, config.attention_bias);
  builder.add_rows(prefix + "v_proj", kv, kv_size, hidden, config.attention_bias);
  builder.add_columns(prefix + "o_proj", q, hidden, q_size);
  return builder.take();
}

ModuleSpec mlp_tile_spec(const ModelConfig& config, int64_t layer, int64_t tile,
                         const TileRange& rows) {
  const std::string prefix = fmt::format("model.layers.{}.mlp.", layer);
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  ModuleBuilder builder(fmt::format("block.{}.mlp.{}", layer, tile));
  builder.add_rows(prefix + "gate_proj", rows, intermediate, hidden, config.mlp_bias);
  builder.add_rows(prefix + "up_proj", rows, intermediate, hidden, config.mlp_bias);
  builder.add_columns(prefix + "down_proj", rows, hidden, intermediate);
  return builder.take();
}

std::vector<ModuleSpec> module_specs(const ModelConfig& config) {
  return tiled_module_specs(config, config.vocab_size);
}

std::vector<ModuleSpec> tiled_module_specs(const ModelConfig& config, int64_t tile_rows,
                                           const BlockCut& cut) {
  HR_CHECK(tile_rows > 0, "tiles of {} vocabulary entries", tile_rows);
  std::vector<ModuleSpec> modules;
  modules.reserve(static_cast<size_t>(config.layers) + 3);
  add_table(modules, config, tile_rows, "embed", "model.embed_tokens.weight");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    add_block(modules, config, layer, cut);
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
