#pragma once

#include <hwy/targets.h>

#include <cstdint>
#include <vector>

#include "base/parallel.h"

namespace headrace::testing {

/// While it lives, code with run-time dispatch over instruction sets uses `target` (a HWY_AVX2 ...
/// bit) or, where that was not compiled, the next lower one.
class ForcedInstructionSet {
 public:
  explicit ForcedInstructionSet(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ForcedInstructionSet(const ForcedInstructionSet&) = delete;
  ForcedInstructionSet& operator=(const ForcedInstructionSet&) = delete;
  ~ForcedInstructionSet() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
};

/// The instruction sets of this machine, one bit each, and the one every machine has.
inline std::vector<int64_t> instruction_sets() {
  std::vector<int64_t> sets = {HWY_SCALAR};
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    const int64_t set = rest & -rest;
    if (set != HWY_SCALAR) {
      sets.push_back(set);
    }
  }
  return sets;
}

/// While it lives, parallel regions of this thread use `threads` threads.
class ForcedThreads {
 public:
  explicit ForcedThreads(int threads) : before_(parallel_threads()) {
    set_parallel_threads(threads);
  }
  ForcedThreads(const ForcedThreads&) = delete;
  ForcedThreads& operator=(const ForcedThreads&) = delete;
  ~ForcedThreads() { set_parallel_threads(before_); }

 private:
  int before_;
};

}  // namespace headrace::testing
