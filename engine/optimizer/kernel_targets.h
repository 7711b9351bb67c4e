#pragma once

// Instruction sets that the optimizers are compiled for: the baseline, SSE4, AVX2 and AVX-512 on
// x86, NEON on Arm. To be included before anything of Highway. A processor with SSSE3 but without
// SSE4 is older than io_uring; it gets the scalar code.
#include "base/highway_targets.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HEADRACE_SVE_TARGETS)

#include <hwy/targets.h>
