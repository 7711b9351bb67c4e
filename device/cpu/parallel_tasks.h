#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace headrace::device::cpu {

/// Cores this process may use: how many scratch areas a parallel kernel needs at most. Fixed for
/// the life of the process, so that scratch sizes are too.
inline int64_t core_count() {
  static const int64_t kCores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return kCores;
}

/// Runs body(task, slot) for each task in [0, tasks), on at most `slots` OpenMP threads of the
/// calling thread; no two tasks run at once with the same slot in [0, slots). Tasks are handed out
/// as threads become free: their results must not depend on slot or order. Rethrows one of the
/// exceptions, after all tasks were run.
template <class Body>
void parallel_tasks(int64_t tasks, [[maybe_unused]] int64_t slots, const Body& body) {
  std::exception_ptr error;
#ifdef _OPENMP
  const int threads = static_cast<int>(
      std::max<int64_t>(1, std::min({tasks, slots, int64_t{omp_get_max_threads()}})));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
#endif
  for (int64_t task = 0; task < tasks; ++task) {
#ifdef _OPENMP
    const int64_t slot = omp_get_thread_num();
#else
    const int64_t slot = 0;
#endif
    try {
      body(task, slot);
    } catch (...) {
#ifdef _OPENMP
#pragma omp critical(headrace_parallel_tasks)
#endif
      error = std::current_exception();
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace headrace::device::cpu
