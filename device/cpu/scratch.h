#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/units.h"
#include "device/kernel_checks.h"
#include "device/kernels.h"

namespace headrace::device::cpu {

/// Space that `count` elements of T take in a scratch area.
template <class T>
Bytes scratch_bytes(int64_t count) {
  return align_up(Bytes(static_cast<int64_t>(sizeof(T))) * count, Bytes(kScratchAlignment));
}

/// Deals out 64-byte aligned parts of a workspace, in order; InternalError when it is too small.
class ScratchCarver {
 public:
  explicit ScratchCarver(Workspace workspace) : next_(workspace.data), left_(workspace.size) {}

  template <class T>
  T* take(int64_t count) {
    const Bytes size = scratch_bytes<T>(count);
    HR_CHECK(size <= left_, "scratch is {} bytes too small", size - left_);
    auto* const part = reinterpret_cast<T*>(next_);
    next_ += size.count();
    left_ -= size;
    return part;
  }

 private:
  std::byte* next_;
  Bytes left_;
};

}  // namespace headrace::device::cpu
