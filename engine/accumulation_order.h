#pragma once

#include <cstdint>

namespace headrace::engine {

/// Order of the passes of a step with gradient accumulation. The numbers are the same in both.
enum class AccumulationOrder : uint8_t {
  layer_major,  ///< every module runs all micro-batches before the next module: weights move
                ///< twice per step, but the activations of all micro-batches are alive at once
  micro_batch_major,  ///< every micro-batch runs through the whole network before the next one
};

}  // namespace headrace::engine
