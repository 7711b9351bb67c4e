#include "engine/state_format.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::engine {

StateFormat::Offsets StateFormat::offsets(Elements count) const {
  HR_CHECK(moments >= 0 && moments <= 2, "{} moments", moments);
  Offsets offsets;
  const auto add = [&](DType dtype) {
    const Bytes at = offsets.size;
    offsets.size += align_up(bytes_for(count, dtype), kArrayAlignment);
    return at;
  };
  if (master == MasterPlace::state) {
    offsets.master = add(DType::f32);
  } else if (master == MasterPlace::split) {
    offsets.master = add(DType::u16);
  }
  for (int i = 0; i < moments; ++i) {
    offsets.moment[static_cast<size_t>(i)] = add(moment_dtype);
  }
  offsets.size = std::max(offsets.size, kArrayAlignment);  // an object is never empty
  return offsets;
}

}  // namespace headrace::engine
