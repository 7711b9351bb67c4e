#include "model/presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "model/checkpoint_file.h"
#include "model/checkpoint_json.h"
#include "model/shapes.h"

namespace headrace::model {

namespace {

constexpr const char* kVocabularyKey = "headrace_vocabulary";
constexpr const char* kBytes = "bytes";

/// Llama blocks with the byte-level vocabulary.
struct Preset {
  const char* name;
  int64_t hidden_size, intermediate_size, layers, heads, kv_heads, max_positions;
};

// tiny 6.4 M, small 29 M, medium 114 M, large 1.0 G parameters.
constexpr std::array<Preset, 4> kPresets = {{
    {"tiny", 256, 768, 8, 4, 2, 2048},
    {"small", 512, 1376, 10, 8, 4, 2048},
    {"medium", 768, 2048, 18, 12, 4, 2048},
    {"large", 2048, 5632, 22, 32, 8, 4096},
}};

/// Presets that are shapes of published models.
constexpr std::array<std::pair<const char*, const char*>, 4> kPublished = {{
    {"smol", "smollm2-135m"},
    {"smol-360m", "smollm2-360m"},
    {"qwen3-0.6b", "qwen3-0.6b"},
    {"mistral-7b", "mistral-7b"},
}};

ModelConfig config_of(const Preset& preset) {
  ModelConfig config;
  config.vocab_size = kByteVocabulary;
  config.hidden_size = preset.hidden_size;
  config.intermediate_size = preset.intermediate_size;
  config.layers = preset.layers;
  config.heads = preset.heads;
  config.kv_heads = preset.kv_heads;
  config.head_dim = 64;
  config.max_positions = preset.max_positions;
  config.rms_norm_eps = 1e-5;
  return config;
}

}  // namespace

ModelConfig preset_config(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) {
      return config_of(preset);
    }
  }
  for (const auto& [preset, shape] : kPublished) {
    if (name == preset) {
      return shape_config(shape);
    }
  }
  throw UsageError(fmt::format("there is no preset \"{}\"; presets are {}", name,
                               fmt::join(preset_names(), ", ")));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  names.reserve(kPresets.size() + kPublished.size());
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
  }
  for (const auto& [preset, shape] : kPublished) {
    names.emplace_back(preset);
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
