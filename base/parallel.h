#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace headrace {

/// Runs body(begin, end) over [0, count) in blocks of `block`, spread over the OpenMP threads of
/// the calling thread. Block borders do not depend on the number of threads, so a body that is
/// deterministic per block gives the same bits for any thread count. The body must not throw.
template <class Body>
void parallel_for_blocks(int64_t count, int64_t block, const Body& body) {
  const int64_t blocks = (count + block - 1) / block;
  if (blocks <= 1) {
    if (count > 0) {
      body(int64_t{0}, count);
    }
    return;
  }
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
  for (int64_t i = 0; i < blocks; ++i) {
    body(i * block, std::min(count, (i + 1) * block));
  }
}

/// The same, but a thread takes the next block when it is done with one: for work in memory, beside
/// other threads that take cores for a while (checksums, I/O).
template <class Body>
void parallel_for_free_blocks(int64_t count, int64_t block, const Body& body) {
  const int64_t blocks = (count + block - 1) / block;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) if (blocks > 1)
#endif
  for (int64_t i = 0; i < blocks; ++i) {
    body(i * block, std::min(count, (i + 1) * block));
  }
}

/// Calls body(thread) once on each of the OpenMP threads of the calling thread. It must not throw.
template <class Body>
void on_every_parallel_thread(const Body& body) {
#ifdef _OPENMP
#pragma omp parallel
  body(static_cast<size_t>(omp_get_thread_num()));
#else
  body(size_t{0});
#endif
}

/// Threads that parallel regions opened by this thread use; from now on.
inline void set_parallel_threads([[maybe_unused]] int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
}

inline int parallel_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace headrace
