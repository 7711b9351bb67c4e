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
  LinearLayout linear{weight.offset, std::nullopt, weight.shape[0], weight.shape[1]};
  if (const ParameterSpec* bias = find_parameter(module, name + ".bias")) {
    linear.bias = bias->offset;
  }
  return linear;
}

}  // namespace

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

}  // namespace headrace::model
