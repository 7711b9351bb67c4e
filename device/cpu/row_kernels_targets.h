#pragma once

// Instruction sets for which the row kernels are compiled: the baseline, AVX2 and AVX-512 on x86,
// NEON on Arm. The sets in between would double the build and change nothing: the vectoriser makes
// no use of what they add. To be included before hwy/foreach_target.h.
#include "base/highway_targets.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HEADRACE_SVE_TARGETS)
