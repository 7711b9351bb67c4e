#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace headrace::model {

/// Angle per position of each of the head_dim / 2 rotary pairs, with the scaling applied; rounded
/// to fp32 where transformers rounds (Su et al., "RoFormer", arXiv 2104.09864; llama3: scaling by
/// wavelength).
std::vector<float> rope_frequencies(const ModelConfig& config);

/// [seq, head_dim] fp32 for Kernels::rope: per position first head_dim / 2 cosines, then as many
/// sines.
std::vector<float> rope_table(const ModelConfig& config, int64_t seq);

}  // namespace headrace::model
