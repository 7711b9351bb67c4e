#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/model_config.h"

namespace headrace::model {

namespace {

using nlohmann::ordered_json;

struct FamilyNames {
  const char* model_type;
  const char* architecture;
};

FamilyNames names_of(Family family) {
  switch (family) {
    case Family::llama:
      return {"llama", "LlamaForCausalLM"};
    case Family::mistral:
      return {"mistral", "MistralForCausalLM"};
    case Family::qwen2:
      return {"qwen2", "Qwen2ForCausalLM"};
    case Family::qwen3:
      return {"qwen3", "Qwen3ForCausalLM"};
  }
  HR_CHECK(false, "unknown model family {}", static_cast<int>(family));
  return {};
}

const char* torch_name(DType dtype) {
  HR_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
           "weights cannot be stored as {}", to_string(dtype));
  return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

/// The layout with rope_theta beside it, which transformers 4 and 5 both read.
ordered_json scaling_json(const RopeScaling& scaling) {
  ordered_json out;
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      break;  // null
    case RopeScaling::Kind::linear:
      out = {{"rope_type", "linear"}, {"factor", scaling.factor}};
      break;
    case RopeScaling::Kind::llama3:
      out = {{"rope_type", "llama3"},
             {"factor", scaling.factor},
             {"low_freq_factor", scaling.low_freq_factor},
             {"high_freq_factor", scaling.high_freq_factor},
             {"original_max_position_embeddings", scaling.original_max_positions}};
      break;
  }
  return out;
}

void add_family_keys(const ModelConfig& config, ordered_json& out) {
  const ordered_json window =
      config.sliding_window ? ordered_json(*config.sliding_window) : ordered_json();
  switch (config.family) {
    case Family::llama:
      out["attention_bias"] = config.attention_bias;
      out["mlp_bias"] = config.mlp_bias;
      break;
    case Family::mistral:
      out["sliding_window"] = window;
      break;
    case Family::qwen3:
      out["attention_bias"] = config.attention_bias;
      [[fallthrough]];
    case Family::qwen2:
      out["use_sliding_window"] = config.sliding_window.has_value();
      out["sliding_window"] = window;
      out["max_window_layers"] = config.sliding_window ? 0 : config.layers;
      break;
  }
}

}  // namespace

std::string to_config_json(const ModelConfig& config, DType dtype) {
  const FamilyNames names = names_of(config.family);
  ordered_json out;
  out["architectures"] = {names.architecture};
  out["model_type"] = names.model_type;
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["num_hidden_layers"] = config.layers;
  out["num_attention_heads"] = config.heads;
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["max_position_embeddings"] = config.max_positions;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = config.rms_norm_eps;
  out["rope_theta"] = config.rope_theta;
  out["rope_scaling"] = scaling_json(config.rope_scaling);
  out["tie_word_embeddings"] = config.tie_word_embeddings;
  out["attention_dropout"] = 0.0;
  add_family_keys(config, out);
  out["torch_dtype"] = torch_name(dtype);
  return out.dump(2) + "\n";
}

}  // namespace headrace::model
