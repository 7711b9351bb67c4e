#include "model/network_layout.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"

namespace headrace::model {

namespace {

const ParameterSpec* find_parameter(const ModuleSpec& module, std::string_view suffix) {
  const auto found = std::find_if(
      module.parameters.begin(), module.parameters.end(),
      [&](const ParameterSpec& parameter) { return parameter.name.ends_with(suffix); });
  return found == module.parameters.end() ? nullptr : &*found;
}

const ParameterSpec& parameter_of(const ModuleSpec& module, std::string_view suffix) {
  const ParameterSpec* found = find_parameter(module, suffix);
  HR_CHECK(found != nullptr, "module {} has no parameter {}", module.name, suffix);
  return *found;
}

LinearLayout linear_of(const ModuleSpec& module, const std::string& name) {
  const ParameterSpec& weight = parameter_of(module, name + ".weight");
  const int64_t inputs = weight.columns > 0 ? weight.columns : weight.shape[1];
  LinearLayout linear{weight.offset, std::nullopt, weight.count.count() / inputs, inputs, inputs};
  if (const ParameterSpec* bias = find_parameter(module, name + ".bias")) {
    linear.bias = bias->offset;
  }
  return linear;
}

std::optional<Elements> bias_of(const ModuleSpec& module, std::string_view suffix) {
  const ParameterSpec* const found = find_parameter(module, suffix);
  return found == nullptr ? std::nullopt : std::optional(found->offset);
}

}  // namespace

LinearLayout LinearLayout::rows(int64_t first, int64_t count) const {
  LinearLayout part = *this;
  part.weight = weight + Elements(first) * stride;
  part.outputs = count;
  if (bias) {
    part.bias = *bias + Elements(first);
  }
  return part;
}

LinearLayout LinearLayout::columns(int64_t first, int64_t count) const {
  return {weight + Elements(first), std::nullopt, outputs, count, stride};
}

std::vector<Gap> gaps_of(const ModuleSpec& module) {
  std::vector<Gap> gaps;
  for (size_t i = 0; i < module.parameters.size(); ++i) {
    const ParameterSpec& parameter = module.parameters[i];
    const Elements end = parameter.offset + parameter.count;
    const bool is_last = i + 1 == module.parameters.size();
    const Elements next = is_last ? module.count : module.parameters[i + 1].offset;
    if (next > end) {
      gaps.push_back({end, next - end});
    }
  }
  return gaps;
}

std::vector<Gap> gaps_of(const VocabularyRange& rows, int64_t hidden_size) {
  const Elements end = Elements(rows.count) * hidden_size;
  const Elements packed(align_up(end.count(), kParameterAlignment.count()));
  return packed > end ? std::vector<Gap>{{end, packed - end}} : std::vector<Gap>();
}

BlockLayout::BlockLayout(const ModelConfig& config) {
  const ModuleSpec module = module_specs(config)[1];  // block.0
  input_norm = parameter_of(module, "input_layernorm.weight").offset;
  post_attention_norm = parameter_of(module, "post_attention_layernorm.weight").offset;
  if (config.qk_norm) {
    q_norm = parameter_of(module, "q_norm.weight").offset;
    k_norm = parameter_of(module, "k_norm.weight").offset;
  }
  q = linear_of(module, "self_attn.q_proj");
  k = linear_of(module, "self_attn.k_proj");
  v = linear_of(module, "self_attn.v_proj");
  o = linear_of(module, "self_attn.o_proj");
  gate = linear_of(module, "mlp.gate_proj");
  up = linear_of(module, "mlp.up_proj");
  down = linear_of(module, "mlp.down_proj");
  gaps = gaps_of(module);
}

AttentionNormsLayout::AttentionNormsLayout(const ModelConfig& config) {
  const ModuleSpec module = attention_norms_spec(config, 0);
  input_norm = parameter_of(module, "input_layernorm.weight").offset;
  if (config.qk_norm) {
    q_norm = parameter_of(module, "q_norm.weight").offset;
    k_norm = parameter_of(module, "k_norm.weight").offset;
  }
  o_bias = bias_of(module, "o_proj.bias");
  gaps = gaps_of(module);
}

MlpNormsLayout::MlpNormsLayout(const ModelConfig& config) {
  const ModuleSpec module = mlp_norms_spec(config, 0);
  norm = parameter_of(module, "post_attention_layernorm.weight").offset;
  down_bias = bias_of(module, "down_proj.bias");
  gaps = gaps_of(module);
}

AttentionTileLayout::AttentionTileLayout(const ModelConfig& config, const TileRange& kv_heads) {
  const ModuleSpec module = attention_tile_spec(config, 0, 0, kv_heads);
  q = linear_of(module, "self_attn.q_proj");
  k = linear_of(module, "self_attn.k_proj");
  v = linear_of(module, "self_attn.v_proj");
  o = linear_of(module, "self_attn.o_proj");
  gaps = gaps_of(module);
}

MlpTileLayout::MlpTileLayout(const ModelConfig& config, const TileRange& rows) {
  const ModuleSpec module = mlp_tile_spec(config, 0, 0, rows);
  gate = linear_of(module, "mlp.gate_proj");
  up = linear_of(module, "mlp.up_proj");
  down = linear_of(module, "mlp.down_proj");
  gaps = gaps_of(module);
}

}  // namespace headrace::model
