#include "model/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "model/checkpoint_json.h"
#include "model/config_reader.h"

namespace headrace::model {

namespace {

using nlohmann::json;

constexpr int64_t kMaxVocab = INT32_MAX;  // token ids are int32
constexpr int64_t kMaxWidth = int64_t{1} << 24;
constexpr int64_t kMaxHeads = int64_t{1} << 16;
constexpr int64_t kMaxHeadDim = int64_t{1} << 14;
constexpr int64_t kMaxLayers = int64_t{1} << 16;
constexpr int64_t kMaxPositions = int64_t{1} << 32;

struct FamilyTraits {
  Family family;
  std::string_view model_type;
  int64_t absent_kv_heads;  // of the family's class in transformers; 0: as many as heads
  int64_t absent_head_dim;  // 0: hidden_size / num_attention_heads
  bool has_attention_bias;  // the config decides
  bool has_mlp_bias;
};

constexpr std::array<FamilyTraits, 4> kFamilies = {{
    {Family::llama, "llama", 0, 0, true, true},
    {Family::mistral, "mistral", 8, 0, false, false},
    {Family::qwen2, "qwen2", 32, 0, false, false},
    {Family::qwen3, "qwen3", 32, 128, true, false},
}};
constexpr std::string_view kSupported =
    "supported model types: llama, mistral, qwen2, qwen3 (dense), with rope types default, linear, "
    "llama3";

const FamilyTraits& read_family(const ConfigReader& reader) {
  const std::string model_type = reader.text("model_type");
  const auto* found = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const auto& traits) {
    return traits.model_type == model_type;
  });
  if (found == kFamilies.end()) {
    reader.fail("model_type", fmt::format("is {}, which is not supported; {}",
                                          quote_name(model_type), kSupported));
  }
  return *found;
}

void refuse_unsupported(const ConfigReader& reader) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (reader.find(key) != nullptr) {
      reader.fail(key,
                  "is set: quantized checkpoints cannot be trained; use the model's original "
                  "bf16, f16 or f32 weights");
    }
  }
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (reader.integer_or(key, 0, kMaxWidth, 0) > 0) {
      reader.fail(
          key, fmt::format("is set: mixture-of-experts models are not supported; {}", kSupported));
    }
  }
  const std::string activation = reader.text_or("hidden_act", "silu");
  if (activation != "silu") {
    reader.fail("hidden_act",
                fmt::format("is {}; only \"silu\" is supported", quote_name(activation)));
  }
  if (reader.number_or("partial_rotary_factor", 0, 1, 1) != 1) {
    reader.fail("partial_rotary_factor", "is not 1; rotating a part of each head is not supported");
  }
}

void warn_of_dropout(const ConfigReader& reader, const std::string& origin) {
  if (reader.find("attention_dropout") == nullptr) {
    return;
  }
  // The range check refuses negative values; "above" is exclusive.
  if (reader.number("attention_dropout", -1e-300, 1) != 0) {
    log_message_once(
        LogLevel::warning, "attention_dropout:" + origin,
        origin +
            ": \"attention_dropout\" is not 0, but training runs without dropout; set it to 0");
  }
}

RopeScaling read_llama3_scaling(const ConfigReader& rope, int64_t max_positions) {
  RopeScaling scaling;
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.factor = rope.number("factor", 0, 1e6);
  scaling.low_freq_factor = rope.number("low_freq_factor", 0, 1e6);
  scaling.high_freq_factor = rope.number("high_freq_factor", 0, 1e6);
  scaling.original_max_positions =
      rope.integer_or("original_max_position_embeddings", 1, kMaxPositions, max_positions);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.fail("high_freq_factor", fmt::format("is {}; it must be above low_freq_factor, {}",
                                              scaling.high_freq_factor, scaling.low_freq_factor));
  }
  return scaling;
}

RopeScaling read_scaling(const ConfigReader& rope, int64_t max_positions) {
  const bool is_old_name = rope.find("rope_type") == nullptr && rope.find("type") != nullptr;
  const char* const key = is_old_name ? "type" : "rope_type";
  const std::string type = rope.text_or(key, "default");
  if (rope.number_or("partial_rotary_factor", 0, 1, 1) != 1) {
    rope.fail("partial_rotary_factor", "is not 1; rotating a part of each head is not supported");
  }
  RopeScaling scaling;
  if (type == "default") {
    return scaling;
  }
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = rope.number("factor", 0, 1e6);
    return scaling;
  }
  if (type == "llama3") {
    return read_llama3_scaling(rope, max_positions);
  }
  rope.fail(key, fmt::format("is {}, which is not supported; {}", quote_name(type), kSupported));
}

/// Old layout: rope_theta beside rope_scaling; new layout: both inside rope_parameters.
void read_rope(const ConfigReader& reader, ModelConfig& config) {
  constexpr double kMaxTheta = 1e15;
  config.rope_theta = reader.number_or("rope_theta", 0, kMaxTheta, 10000);
  // A non-empty rope_scaling wins over rope_parameters, as in transformers.
  auto rope = reader.object("rope_scaling");
  const bool is_empty = !rope || reader.find("rope_scaling")->empty();
  if (is_empty) {
    rope = reader.object("rope_parameters");
  }
  if (!rope) {
    return;
  }
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (rope->find(layer_type) != nullptr) {
      rope->fail(layer_type, "is set: rope parameters per layer type are not supported");
    }
  }
  config.rope_theta = rope->number_or("rope_theta", 0, kMaxTheta, config.rope_theta);
  config.rope_scaling = read_scaling(*rope, config.max_positions);
}

void read_heads(const ConfigReader& reader, const FamilyTraits& traits, ModelConfig& config) {
  config.heads = reader.integer("num_attention_heads", 1, kMaxHeads);
  const bool kv_absent = !reader.has("num_key_value_heads") && traits.absent_kv_heads > 0;
  config.kv_heads = reader.integer_or("num_key_value_heads", 1, kMaxHeads,
                                      kv_absent ? traits.absent_kv_heads : config.heads);
  if (config.heads % config.kv_heads != 0) {
    reader.fail("num_key_value_heads", fmt::format("is {}; it must divide num_attention_heads, {}",
                                                   config.kv_heads, config.heads));
  }
  if (auto head_dim = reader.optional_integer("head_dim", 1, kMaxHeadDim)) {
    config.head_dim = *head_dim;
  } else if (traits.absent_head_dim > 0) {
    config.head_dim = traits.absent_head_dim;
  } else if (config.hidden_size % config.heads == 0) {
    config.head_dim = config.hidden_size / config.heads;
  } else {
    reader.fail("num_attention_heads",
                fmt::format("is {}; it must divide hidden_size, {}, where no "
                            "head_dim is given",
                            config.heads, config.hidden_size));
  }
  if (config.head_dim % 2 != 0) {
    reader.fail("head_dim",
                fmt::format("is {}; rotary embedding needs an even size", config.head_dim));
  }
}

void read_biases(const ConfigReader& reader, const FamilyTraits& traits, const std::string& origin,
                 ModelConfig& config) {
  const bool attention = reader.boolean_or("attention_bias", false);
  const bool mlp = reader.boolean_or("mlp_bias", false);
  const bool is_ignored =
      (attention && !traits.has_attention_bias && traits.family != Family::qwen2) ||
      (mlp && !traits.has_mlp_bias);
  if (is_ignored) {
    log_message_once(LogLevel::warning, "bias:" + origin,
                     fmt::format("{}: models of type {} have no such biases; \"attention_bias\" or "
                                 "\"mlp_bias\" is ignored, as transformers does",
                                 origin, traits.model_type));
  }
  config.attention_bias =
      traits.family == Family::qwen2 || (attention && traits.has_attention_bias);
  config.output_bias = attention && traits.has_attention_bias;
  config.mlp_bias = mlp && traits.has_mlp_bias;
}

/// Of qwen2 and qwen3: how many layers use the window, by layer_types or else max_window_layers.
int64_t windowed_layers(const ConfigReader& reader, int64_t layers) {
  const json* types = reader.find("layer_types");
  if (types == nullptr) {
    return layers - std::min(layers, reader.integer_or("max_window_layers", 0, kMaxLayers, 28));
  }
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) {
    reader.fail("layer_types",
                fmt::format("must be a list with one entry for each of {} layers", layers));
  }
  int64_t windowed = 0;
  for (const json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      reader.fail("layer_types", fmt::format("contains {}; supported are \"full_attention\" and "
                                             "\"sliding_attention\"",
                                             type.dump()));
    }
    windowed += type == "sliding_attention" ? 1 : 0;
  }
  return windowed;
}

std::optional<int64_t> read_window(const ConfigReader& reader, Family family, int64_t layers) {
  if (family == Family::llama) {
    return std::nullopt;
  }
  constexpr int64_t kAbsentWindow = 4096;
  const auto window = reader.has("sliding_window")
                          ? reader.optional_integer("sliding_window", 1, kMaxPositions)
                          : std::optional<int64_t>(kAbsentWindow);
  if (family == Family::mistral) {
    return window;
  }
  const bool is_used = reader.boolean_or("use_sliding_window", false);
  const int64_t windowed = windowed_layers(reader, layers);
  if (!is_used || !window || windowed == 0) {
    return std::nullopt;
  }
  if (windowed != layers) {
    reader.fail(
        "use_sliding_window",
        fmt::format("is true and {} of {} layers use the window; a mixture is not supported "
                    "(all or none)",
                    windowed, layers));
  }
  return window;
}

/// One number or a list of them. What else may stand there is of no use, and no error: most of what
/// is done with a model does not read it.
std::vector<int64_t> read_end_tokens(const ConfigReader& reader) {
  const json* const value = reader.find("eos_token_id");
  if (value == nullptr) {
    return {};
  }
  std::vector<int64_t> tokens;
  for (const json& token : value->is_array() ? *value : json::array({*value})) {
    if (token.is_number_integer()) {
      tokens.push_back(token.get<int64_t>());
    }
  }
  return tokens;
}

}  // namespace

ModelConfig parse_model_config(const std::string& json_text, const std::string& origin) {
  const json document = parse_json_object<json>(json_text, origin);
  const ConfigReader reader(document, origin);
  const FamilyTraits& traits = read_family(reader);
  refuse_unsupported(reader);
  warn_of_dropout(reader, origin);
  ModelConfig config;
  config.family = traits.family;
  config.vocab_size = reader.integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = reader.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = reader.integer("intermediate_size", 1, kMaxWidth);
  config.layers = reader.integer("num_hidden_layers", 1, kMaxLayers);
  config.max_positions = reader.integer("max_position_embeddings", 1, kMaxPositions);
  config.rms_norm_eps = reader.number_or("rms_norm_eps", 0, 1, 1e-6);
  config.tie_word_embeddings = reader.boolean_or("tie_word_embeddings", false);
  config.qk_norm = traits.family == Family::qwen3;
  read_heads(reader, traits, config);
  read_biases(reader, traits, origin, config);
  read_rope(reader, config);
  config.sliding_window = read_window(reader, traits.family, config.layers);
  config.end_tokens = read_end_tokens(reader);
  return config;
}

void check_sequence_length(const ModelConfig& config, int64_t seq) {
  if (seq < 1) {
    throw InputError(fmt::format("the sequence length is {}; it must be at least 1", seq));
  }
  if (seq > config.max_positions) {
    throw InputError(
        fmt::format("the sequence length is {}, but the model has "
                    "max_position_embeddings {}; use shorter sequences",
                    seq, config.max_positions));
  }
}

}  // namespace headrace::model
