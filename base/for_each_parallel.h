#pragma once

#include <cstddef>
#include <functional>

namespace headrace {

/// Calls `work(i)` for every i below `count`, on as many threads as there are cores, and returns
/// when all calls have ended. For work of milliseconds and more; parallel_for_blocks() is for
/// loops. Rethrows what a call throws; others may have been left out then.
void for_each_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace headrace
