#include "engine/shard_arrays.h"

namespace headrace::engine {

UpdateShard shard_arrays(const StateFormat& format, DType dtype, Elements first, Elements count,
                         std::byte* state, std::byte* weights) {
  const StateFormat::Offsets offsets = format.offsets(count);
  std::byte* const own_weights = weights + bytes_for(first, dtype).count();
  UpdateShard arrays;
  arrays.count = count;
  arrays.weight_dtype = dtype;
  arrays.moment_dtype = format.moment_dtype;
  if (format.master == MasterPlace::weight) {
    arrays.master = reinterpret_cast<float*>(own_weights);
  } else {
    arrays.weight = own_weights;
  }
  if (format.master == MasterPlace::state) {
    arrays.master = reinterpret_cast<float*>(state + offsets.master.count());
  } else if (format.master == MasterPlace::split) {
    arrays.master_low = reinterpret_cast<uint16_t*>(state + offsets.master.count());
  }
  arrays.moment1 = format.moments > 0 ? state + offsets.moment[0].count() : nullptr;
  arrays.moment2 = format.moments > 1 ? state + offsets.moment[1].count() : nullptr;
  if (format.moment_dtype == DType::u8) {
    auto* const bytes = reinterpret_cast<uint8_t*>(state);
    arrays.scale1 = format.moments > 0 ? bytes + offsets.scale[0].count() : nullptr;
    arrays.scale2 = format.moments > 1 ? bytes + offsets.scale[1].count() : nullptr;
  }
  return arrays;
}

}  // namespace headrace::engine
