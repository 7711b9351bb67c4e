#include "model/presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/checkpoint_file.h"
#include "model/checkpoint_json.h"

namespace headrace::model {

namespace {

constexpr const char* kVocabularyKey = "headrace_vocabulary";
constexpr const char* kBytes = "bytes";

struct Preset {
  const char* name;
  Family family;
  int64_t vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim;
  int64_t max_positions;
  double rms_norm_eps, rope_theta;
  bool tied;
  bool qk_norm;
};

// tiny 6.4 M, small 29 M, medium 114 M, large 1.0 G parameters; the others are the published shapes
// of SmolLM2 135M and 360M, Qwen3 0.6B, Mistral 7B v0.3.
constexpr std::array<Preset, 8> kPresets = {{
    {"tiny", Family::llama, kByteVocabulary, 256, 768, 8, 4, 2, 64, 2048, 1e-5, 1e4, false, false},
    {"small", Family::llama, kByteVocabulary, 512, 1376, 10, 8, 4, 64, 2048, 1e-5, 1e4, false,
     false},
    {"medium", Family::llama, kByteVocabulary, 768, 2048, 18, 12, 4, 64, 2048, 1e-5, 1e4, false,
     false},
    {"large", Family::llama, kByteVocabulary, 2048, 5632, 22, 32, 8, 64, 4096, 1e-5, 1e4, false,
     false},
    {"smol", Family::llama, 49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, 1e5, true, false},
    {"smol-360m", Family::llama, 49152, 960, 2560, 32, 15, 5, 64, 8192, 1e-5, 1e5, true, false},
    {"qwen3-0.6b", Family::qwen3, 151936, 1024, 3072, 28, 16, 8, 128, 40960, 1e-6, 1e6, true, true},
    {"mistral-7b", Family::mistral, 32768, 4096, 14336, 32, 32, 8, 128, 32768, 1e-5, 1e6, false,
     false},
}};

}  // namespace

ModelConfig preset_config(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name != preset.name) {
      continue;
    }
    ModelConfig config;
    config.family = preset.family;
    config.vocab_size = preset.vocab_size;
    config.hidden_size = preset.hidden_size;
    config.intermediate_size = preset.intermediate_size;
    config.layers = preset.layers;
    config.heads = preset.heads;
    config.kv_heads = preset.kv_heads;
    config.head_dim = preset.head_dim;
    config.max_positions = preset.max_positions;
    config.rms_norm_eps = preset.rms_norm_eps;
    config.rope_theta = preset.rope_theta;
    config.tie_word_embeddings = preset.tied;
    config.qk_norm = preset.qk_norm;
    return config;
  }
  throw UsageError(fmt::format("there is no preset \"{}\"; presets are {}", name,
                               fmt::join(preset_names(), ", ")));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  names.reserve(kPresets.size());
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
  }
  return names;
}

bool is_byte_level(const std::string& model_folder) {
  const std::string path = (std::filesystem::path(model_folder) / "config.json").string();
  const auto config = parse_json_object<nlohmann::json>(read_text_file(path, kMiB), path);
  const auto found = config.find(kVocabularyKey);
  if (found == config.end()) {
    return false;
  }
  if (*found != kBytes) {
    throw InputError(fmt::format("{}: \"{}\" is {}; the only vocabulary known is \"{}\"", path,
                                 kVocabularyKey, quote_name(found->dump()), kBytes));
  }
  return true;
}

std::string mark_byte_level(const std::string& config_json) {
  auto config = parse_json_object<nlohmann::ordered_json>(config_json, "config.json");
  config["bos_token_id"] = kByteBos;
  config["eos_token_id"] = kByteEos;
  config["pad_token_id"] = kBytePad;
  config[kVocabularyKey] = kBytes;
  return config.dump(2) + "\n";
}

}  // namespace headrace::model
