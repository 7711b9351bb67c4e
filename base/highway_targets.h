#pragma once

// The vectors of SVE have no size at compile time, so they cannot be kept in objects, as kernels do
// here: for HWY_DISABLED_TARGETS, so that processors with SVE run NEON.
#define HEADRACE_SVE_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
