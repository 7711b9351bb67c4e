#pragma once

#include "engine/optimizer/update_coefficients.h"

namespace headrace::engine {

// One function per optimizer, each in a source file of its own that is compiled for every
// instruction set. The shard has been checked and is not empty. They return whether every new value
// is finite.

bool adam_update(const AdamCoefficients& c, float gradient_scale, const UpdateShard& shard);
bool adagrad_update(const AdagradCoefficients& c, float gradient_scale, const UpdateShard& shard);
bool lion_update(const LionCoefficients& c, float gradient_scale, const UpdateShard& shard);
/// `has_buffer`: momentum is not 0.
bool sgd_update(const SgdCoefficients& c, bool has_buffer, float gradient_scale,
                const UpdateShard& shard);

}  // namespace headrace::engine
