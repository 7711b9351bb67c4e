#pragma once

#include "engine/optimizer/update_coefficients.h"

namespace headrace::engine {

/// What a pass needs besides the coefficients.
struct PassOptions {
  float gradient_scale;
  uint64_t seed;  ///< as UpdateOptions
  int64_t step;
};

// One function per optimizer, each in a source file of its own that is compiled for every
// instruction set. The shard has been checked and is not empty. They return whether every new value
// is finite.

bool adam_update(const AdamCoefficients& c, const PassOptions& options, const UpdateShard& shard);
/// With bf16 moments, where c.is_safe.
bool fused_adam_update(const FusedAdamCoefficients& c, const PassOptions& options,
                       const UpdateShard& shard);
bool adagrad_update(const AdagradCoefficients& c, const PassOptions& options,
                    const UpdateShard& shard);
bool lion_update(const LionCoefficients& c, const PassOptions& options, const UpdateShard& shard);
/// `has_buffer`: momentum is not 0.
bool sgd_update(const SgdCoefficients& c, bool has_buffer, const PassOptions& options,
                const UpdateShard& shard);

}  // namespace headrace::engine
