#pragma once

// Instruction sets that the optimizers are compiled for: the baseline, SSE4, AVX2 and AVX-512 on
// x86, NEON on Arm. To be included before anything of Highway. A processor with SSSE3 but without
// SSE4 is older than io_uring; it gets the scalar code. The vectors of SVE have no size at compile
// time, so they cannot be kept in objects, as the passes do; processors with SVE run NEON.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include <hwy/targets.h>
