#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/parallel.h"
#include "base/random.h"
#include "model/checkpoint.h"
#include "model/presets.h"

namespace headrace::model {

namespace {

constexpr float kDeviation = 0.02F;  // initializer_range of the Llama family

// FNV-1a, so that a tensor's values depend on its name and not on its neighbours.
uint64_t stream_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
  }
  return hash;
}

// Normal values number `first` to `first + out.size()` of a stream: four to a counter (Box-Muller).
void fill_normal(uint64_t seed, uint64_t stream, int64_t first, std::span<float> out) {
  constexpr int64_t kBlock = 1 << 14;
  const int64_t end = first + static_cast<int64_t>(out.size());
  const int64_t first_counter = first / 4;
  const int64_t counters = (end + 3) / 4 - first_counter;
  parallel_for_blocks(counters, kBlock, [&](int64_t block_begin, int64_t block_end) {
    for (int64_t i = block_begin; i < block_end; ++i) {
      const int64_t counter = first_counter + i;
      const auto words = philox(seed, stream, static_cast<uint64_t>(counter));
      std::array<float, 4> values{};
      for (size_t pair = 0; pair < 4; pair += 2) {
        const float radius = std::sqrt(-2.0F * std::log(1.0F - uniform_from(words[pair])));
        const float angle = 2.0F * std::numbers::pi_v<float> * uniform_from(words[pair + 1]);
        values[pair] = kDeviation * radius * std::cos(angle);
        values[pair + 1] = kDeviation * radius * std::sin(angle);
      }
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t at = counter * 4 + k;
        if (at >= first && at < end) {
          out[static_cast<size_t>(at - first)] = values[static_cast<size_t>(k)];
        }
      }
    }
  });
}

void fill_parameter(const ParameterSpec& parameter, uint64_t seed, int64_t first,
                    std::span<float> out) {
  if (parameter.name.ends_with("norm.weight")) {
    std::fill(out.begin(), out.end(), 1.0F);
  } else if (parameter.name.ends_with(".bias")) {
    std::fill(out.begin(), out.end(), 0.0F);
  } else {
    fill_normal(seed, stream_of(parameter.name), first, out);
  }
}

// Packed elements [first, first + out.size()) of the module; gaps between parameters are zero.
void fill_module(const ModuleSpec& module, uint64_t seed, int64_t first, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  const int64_t end = first + static_cast<int64_t>(out.size());
  for (const ParameterSpec& parameter : module.parameters) {
    const int64_t begin = parameter.offset.count();
    const int64_t from = std::max(first, begin);
    const int64_t to = std::min(end, begin + parameter.count.count());
    if (from < to) {
      fill_parameter(
          parameter, seed, from - begin,
          out.subspan(static_cast<size_t>(from - first), static_cast<size_t>(to - from)));
    }
  }
}

}  // namespace

void init_model(const ModelConfig& config, DType dtype, uint64_t seed, const std::string& folder) {
  CheckpointWriter::Options options;
  options.dtype = dtype;
  options.config_json = to_config_json(config, dtype);
  if (config.vocab_size == kByteVocabulary) {
    options.config_json = mark_byte_level(options.config_json);
  }
  const std::vector<ModuleSpec> modules = module_specs(config);
  CheckpointWriter writer(folder, config, modules, options);
  for (const ModuleSpec& module : modules) {
    writer.write_module(module, [&](Elements first, std::span<float> out) {
      fill_module(module, seed, first.count(), out);
    });
  }
  writer.finish();
}

}  // namespace headrace::model
