#include "tiers/free_space_map.h"

#include <iterator>

#include "base/check.h"

namespace headrace::tiers {

std::optional<int64_t> FreeSpaceMap::take(Bytes length) {
  HR_CHECK(length > Bytes(0), "taking {} bytes", length);
  const auto fit = by_length_.lower_bound({length.count(), 0});
  if (fit == by_length_.end()) {
    return std::nullopt;
  }
  const auto [gap_length, offset] = *fit;
  erase(gaps_.find(offset));
  if (gap_length > length.count()) {
    insert(offset + length.count(), gap_length - length.count());
  }
  free_ -= length;
  return offset;
}

bool FreeSpaceMap::take_at(int64_t offset, Bytes length) {
  HR_CHECK(offset >= 0 && length > Bytes(0), "taking [{}, +{})", offset, length);
  const auto after = gaps_.upper_bound(offset);
  if (after == gaps_.begin()) {
    return false;
  }
  const auto gap = std::prev(after);
  const auto [begin, size] = *gap;
  const int64_t end = begin + size;
  if (length > Bytes(end - offset)) {
    return false;
  }
  erase(gap);
  if (begin < offset) {
    insert(begin, offset - begin);
  }
  if (offset + length.count() < end) {
    insert(offset + length.count(), end - offset - length.count());
  }
  free_ -= length;
  return true;
}

void FreeSpaceMap::give_back(int64_t offset, Bytes length) {
  HR_CHECK(offset >= 0 && length > Bytes(0), "giving back [{}, +{})", offset, length);
  int64_t begin = offset;
  int64_t end = offset + length.count();
  const auto after = gaps_.lower_bound(begin);
  HR_CHECK(after == gaps_.end() || after->first >= end,
           "giving back [{}, {}), but [{}, +{}) is free already", begin, end, after->first,
           after->second);
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    const int64_t before_end = before->first + before->second;
    HR_CHECK(before_end <= begin, "giving back [{}, {}), but [{}, {}) is free already", begin, end,
             before->first, before_end);
    if (before_end == begin) {
      begin = before->first;
      erase(before);
    }
  }
  if (after != gaps_.end() && after->first == end) {
    end += after->second;
    erase(after);
  }
  insert(begin, end - begin);
  free_ += length;
}

Bytes FreeSpaceMap::gap_before(int64_t end) const {
  const auto after = gaps_.lower_bound(end);
  if (after == gaps_.begin()) {
    return Bytes(0);
  }
  const auto& [offset, length] = *std::prev(after);
  return Bytes(offset + length == end ? length : 0);
}

void FreeSpaceMap::insert(int64_t offset, int64_t length) {
  gaps_.emplace(offset, length);
  by_length_.emplace(length, offset);
}

void FreeSpaceMap::erase(Gaps::iterator gap) {
  by_length_.erase({gap->second, gap->first});
  gaps_.erase(gap);
}

}  // namespace headrace::tiers
