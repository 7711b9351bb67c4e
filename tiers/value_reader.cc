#include "tiers/value_reader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace headrace::tiers {

void ValueReader::read(int64_t offset, std::span<std::byte> out) {
  const auto end = offset + static_cast<int64_t>(out.size());
  HR_CHECK(offset >= 0 && end <= size().count(), "bytes {} to {} of object '{}' of {} bytes",
           offset, end, name_, size());
  int64_t extent_begin = 0;
  for (size_t i = 0; i < value_->extents().size() && extent_begin < end; ++i) {
    const int64_t extent_end = extent_begin + value_->extents()[i].length.count();
    const int64_t from = std::max(offset, extent_begin);
    const int64_t to = std::min(end, extent_end);
    if (from < to) {
      load(i);
      std::memcpy(out.data() + (from - offset), buffer_->data() + (from - extent_begin),
                  static_cast<size_t>(to - from));
    }
    extent_begin = extent_end;
  }
}

void ValueReader::load(size_t extent) {
  if (loaded_ == extent) {
    return;
  }
  if (!buffer_) {
    Bytes longest;
    for (const Extent& each : value_->extents()) {
      longest = std::max(longest, align_up(each.length, kExtentAlignment));
    }
    buffer_.emplace(longest, false);
  }
  loaded_.reset();
  io_.read_extent(name_, value_->extents()[extent], buffer_->bytes());
  loaded_ = extent;
}

}  // namespace headrace::tiers
