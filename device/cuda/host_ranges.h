#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "base/units.h"

namespace headrace::device::cuda {

/// Address ranges of one kind, disjoint. Thread-safe.
class AddressRanges {
 public:
  void add(const std::byte* begin, Bytes size);
  void remove(const std::byte* begin);
  /// Whether all of [begin, begin + size) lies in one of them.
  bool contains(const void* begin, Bytes size) const;

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, Bytes> ranges_;
};

/// Memory that CUDA copies from and to on its own.
struct HostRanges {
  AddressRanges registered;  ///< host memory
  AddressRanges device;
};

}  // namespace headrace::device::cuda
