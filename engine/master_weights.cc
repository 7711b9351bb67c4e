#include "engine/master_weights.h"

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "base/split_float.h"
#include "engine/optimizer/moment_codes.h"

namespace headrace::engine {

namespace {

constexpr int64_t kBlock = int64_t{1} << 16;

uint16_t rounded(float value, DType dtype) {
  return dtype == DType::bf16 ? split(value).weight : to_f16(value).bits;
}

}  // namespace

UpdateShard slice(const UpdateShard& shard, Elements first, Elements count) {
  HR_CHECK(first >= Elements(0) && first + count <= shard.count, "elements {} to {} of {}",
           first.count(), (first + count).count(), shard.count.count());
  const auto advance = [&](void* array, DType dtype) -> void* {
    return array == nullptr ? nullptr
                            : static_cast<std::byte*>(array) + bytes_for(first, dtype).count();
  };
  UpdateShard part = shard;
  part.count = count;
  part.master = static_cast<float*>(advance(shard.master, DType::f32));
  part.master_low = static_cast<uint16_t*>(advance(shard.master_low, DType::u16));
  part.weight = advance(shard.weight, shard.weight_dtype);
  part.moment1 = advance(shard.moment1, shard.moment_dtype);
  part.moment2 = advance(shard.moment2, shard.moment_dtype);
  part.first_element += first.count();
  if (shard.moment_dtype == DType::u8) {
    HR_CHECK(first.count() % kMomentBlock.count() == 0, "8-bit moments cut at element {}",
             first.count());
    const auto scales = [&](uint8_t* all) {
      return all == nullptr ? nullptr : all + first / kMomentBlock;
    };
    part.scale1 = scales(shard.scale1);
    part.scale2 = scales(shard.scale2);
  }
  part.gradient = nullptr;
  part.accumulated = nullptr;
  return part;
}

void set_master(const UpdateShard& shard, int64_t first, std::span<const float> values) {
  HR_CHECK(first >= 0 && first + static_cast<int64_t>(values.size()) <= shard.count.count(),
           "master of elements {} to {} in a shard of {}", first,
           first + static_cast<int64_t>(values.size()), shard.count.count());
  if (shard.master != nullptr) {
    std::copy(values.begin(), values.end(), shard.master + first);
  }
  auto* const weight = static_cast<uint16_t*>(shard.weight);
  for (size_t i = 0; i < values.size() && weight != nullptr; ++i) {
    const auto at = first + static_cast<int64_t>(i);
    weight[at] = rounded(values[i], shard.weight_dtype);
    if (shard.master_low != nullptr) {
      shard.master_low[at] = split(values[i]).low;
    }
  }
}

void restore_weights(const UpdateShard& shard) {
  auto* const weight = static_cast<uint16_t*>(shard.weight);
  if (shard.master == nullptr || weight == nullptr) {
    return;
  }
  parallel_for_blocks(shard.count.count(), kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      weight[i] = rounded(shard.master[i], shard.weight_dtype);
    }
  });
}

}  // namespace headrace::engine
