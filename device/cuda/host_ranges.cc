#include "device/cuda/host_ranges.h"

#include "base/check.h"

namespace headrace::device::cuda {

void AddressRanges::add(const std::byte* begin, Bytes size) {
  const std::lock_guard lock(mutex_);
  HR_CHECK(ranges_.emplace(begin, size).second, "memory at {} is known already", fmt::ptr(begin));
}

void AddressRanges::remove(const std::byte* begin) {
  const std::lock_guard lock(mutex_);
  HR_CHECK(ranges_.erase(begin) == 1, "memory at {} is not known", fmt::ptr(begin));
}

bool AddressRanges::contains(const void* begin, Bytes size) const {
  const auto* const first = static_cast<const std::byte*>(begin);
  const std::lock_guard lock(mutex_);
  auto range = ranges_.upper_bound(first);
  if (range == ranges_.begin()) {
    return false;
  }
  --range;
  const int64_t offset = first - range->first;
  return size <= range->second && offset <= (range->second - size).count();
}

}  // namespace headrace::device::cuda
