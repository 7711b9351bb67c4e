#pragma once

#include <cstdlib>

#include "device/gpu.h"

namespace headrace::test {

/// The real GPU, where $HEADRACE_TEST_GPU asks for it as the tests with the label gpu do; else why
/// they are skipped. ctest knows the word SKIPPED.
inline device::GpuSearch find_gpu_for_tests() {
  if (std::getenv("HEADRACE_TEST_GPU") == nullptr) {
    return {std::nullopt, "ctest -L gpu runs it"};
  }
  device::GpuSearch search = device::find_gpu();
  search.refusal = "SKIPPED: " + search.refusal;
  return search;
}

}  // namespace headrace::test
