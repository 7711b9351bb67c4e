#include "engine/master_weights.h"

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "base/split_float.h"

namespace headrace::engine {

namespace {

constexpr int64_t kBlock = int64_t{1} << 16;

uint16_t rounded(float value, DType dtype) {
  return dtype == DType::bf16 ? split(value).weight : to_f16(value).bits;
}

}  // namespace

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
