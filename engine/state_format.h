#pragma once

#include <array>

#include "base/dtype.h"
#include "base/units.h"

namespace headrace::engine {

/// Where the fp32 master of a weight is.
enum class MasterPlace : uint8_t {
  weight,  ///< the weight is fp32 itself
  state,   ///< a fp32 copy in the optimizer state
  split,   ///< a bf16 weight and, in the state, the 16 bits that complete it (base/split_float.h)
};

/// How the optimizer state object of one shard is laid out: fp32 master or low halves, then the
/// moments, then the scales of 8-bit moments, each array at a multiple of kArrayAlignment. A value.
struct StateFormat {
  static constexpr Bytes kArrayAlignment{64};

  MasterPlace master = MasterPlace::weight;
  int moments = 2;                  ///< arrays
  DType moment_dtype = DType::f32;  ///< f32, bf16 or u8 (optimizer/moment_codes.h)

  /// Offsets of the arrays in the state object of `count` elements, and its size.
  struct Offsets {
    Bytes master;
    std::array<Bytes, 2> moment;
    std::array<Bytes, 2> scale;  ///< u8: one byte per block of the moment
    Bytes size;
  };
  Offsets offsets(Elements count) const;

  /// Bytes of memory that the update of one element reads and writes: weight, master, moments and a
  /// gradient of this type; the scales of 8-bit moments, a 32nd more, are left out.
  Bytes update_traffic(DType gradient) const;
};

/// What the optimizer keeps per weight.
struct StateRequest {
  int moments = 2;
  DType moment_dtype = DType::f32;
  bool split_master = true;  ///< bf16 training only; else a fp32 master beside a 16-bit weight
};

}  // namespace headrace::engine
