#include "engine/state_format.h"

#include <algorithm>

#include "base/check.h"
#include "engine/optimizer/moment_codes.h"

namespace headrace::engine {

StateFormat::Offsets StateFormat::offsets(Elements count) const {
  HR_CHECK(moments >= 0 && moments <= 2, "{} moments", moments);
  Offsets offsets;
  const auto add_bytes = [&](Bytes size) {
    const Bytes at = offsets.size;
    offsets.size += align_up(size, kArrayAlignment);
    return at;
  };
  const auto add = [&](DType dtype) { return add_bytes(bytes_for(count, dtype)); };
  if (master == MasterPlace::state) {
    offsets.master = add(DType::f32);
  } else if (master == MasterPlace::split) {
    offsets.master = add(DType::u16);
  }
  for (int i = 0; i < moments; ++i) {
    offsets.moment[static_cast<size_t>(i)] = add(moment_dtype);
  }
  for (int i = 0; i < moments && moment_dtype == DType::u8; ++i) {
    offsets.scale[static_cast<size_t>(i)] = add_bytes(bytes_for(moment_blocks(count), DType::u8));
  }
  offsets.size = std::max(offsets.size, kArrayAlignment);  // an object is never empty
  return offsets;
}

Bytes StateFormat::update_traffic(DType gradient) const {
  const Bytes full = size_of(DType::f32);
  const Bytes half = size_of(DType::u16);
  Bytes weight = full * 2;  // the master itself
  if (master == MasterPlace::state) {
    weight += half;  // is only written
  } else if (master == MasterPlace::split) {
    weight = half * 2 + half * 2;
  }
  return weight + size_of(moment_dtype) * (2 * moments) + size_of(gradient);
}

}  // namespace headrace::engine
