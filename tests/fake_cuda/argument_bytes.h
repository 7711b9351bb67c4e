#pragma once

#include <cstddef>

namespace headrace::device::testing {

/// What is dispatched to learn the size of a kernel's argument structure.
struct ArgumentBytes {
  size_t& size;
  template <class Kernel>
  bool operator()() const {
    size = sizeof(typename Kernel::Arguments);
    return true;
  }
};

}  // namespace headrace::device::testing
