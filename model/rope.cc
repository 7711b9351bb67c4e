#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace headrace::model {

namespace {

/// Long wavelengths are divided by the factor, short ones kept, those between interpolated.
float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_max_positions);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > context / scaling.low_freq_factor) {
    return static_cast<float>(frequency / scaling.factor);
  }
  if (wavelength < context / scaling.high_freq_factor) {
    return frequency;
  }
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / scaling.factor + smooth * frequency);
}

float scaled_frequency(float frequency, const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return frequency;
    case RopeScaling::Kind::linear:
      return static_cast<float>(frequency / scaling.factor);
    case RopeScaling::Kind::llama3:
      return llama3_frequency(frequency, scaling);
  }
  return frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config) {
  const int64_t pairs = config.head_dim / 2;
  std::vector<float> frequencies(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) {
    // Exponent, power and inverse are each rounded, as in transformers.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    const auto power = static_cast<float>(std::pow(config.rope_theta, double{exponent}));
    const float frequency = 1 / power;
    frequencies[static_cast<size_t>(i)] = scaled_frequency(frequency, config.rope_scaling);
  }
  return frequencies;
}

std::vector<float> rope_table(const ModelConfig& config, int64_t seq) {
  const std::vector<float> frequencies = rope_frequencies(config);
  const size_t pairs = frequencies.size();
  std::vector<float> table(static_cast<size_t>(seq) * pairs * 2);
  for (int64_t position = 0; position < seq; ++position) {
    float* const row = table.data() + static_cast<size_t>(position) * pairs * 2;
    for (size_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];  // fp32, as transformers
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[pairs + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
}

}  // namespace headrace::model
