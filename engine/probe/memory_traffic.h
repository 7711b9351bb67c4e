#pragma once

#include <cstdint>

namespace headrace::engine {

/// Adds the gradient to the three other arrays: the streams of an fp32 optimizer step, four in and
/// three out, with the widest vectors and the look-ahead of the optimizer. `count` is a multiple of
/// 64 elements. One thread.
void pass_over(float* master, float* moment1, float* moment2, const float* gradient, int64_t count);

}  // namespace headrace::engine
