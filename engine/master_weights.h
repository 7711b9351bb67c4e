#pragma once

#include <cstdint>
#include <span>

#include "engine/optimizer/update.h"

namespace headrace::engine {

/// Elements [first, first + count) of a shard's arrays; the gradient is left out. With 8-bit
/// moments `first` begins a block.
UpdateShard slice(const UpdateShard& shard, Elements first, Elements count);

/// Sets the fp32 master of elements [first, first + values.size()) of a shard, wherever it is, and
/// the 16-bit weights rounded from it as the optimizers do. Thread-safe for different ranges.
void set_master(const UpdateShard& shard, int64_t first, std::span<const float> values);

/// Writes the 16-bit weights of a whole shard anew from its fp32 master; nothing to do where the
/// weights hold the master. On the OpenMP threads of the calling thread.
void restore_weights(const UpdateShard& shard);

}  // namespace headrace::engine
