#include "bench/io_ours.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>

#include "base/check.h"
#include "base/seconds.h"

namespace headrace::bench {

namespace {

/// Objects from here on share one place in memory: their values do not matter here.
constexpr Bytes kSharedObject{int64_t{64} << 20};

double cpu_seconds() {
  rusage usage{};
  HR_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0, "errno={}", errno);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Ended objects are replaced so many at a time, of a window, as a pass over many small objects
/// does.
constexpr int64_t kRefills = 12;

/// Objects in flight: as many more than the depth asks for as are replaced at a time, so that the
/// queue stays full; not more, because the larger the memory, the less of it is in caches, and fio
/// has no more than its depth. An even number, so that a mixed job reads and writes the same.
int64_t window_of(const IoJob& job) {
  const int64_t wanted =
      ceil_div((job.block * job.depth * kRefills).count(), (job.object * (kRefills - 1)).count());
  return std::max<int64_t>(4, ceil_div(wanted, 2) * 2);
}

/// The i-th request of a job.
aio::IoRequest request_of(const IoJob& job, int64_t i, std::span<std::byte> memory) {
  const int64_t object = job.object.count();
  const int64_t slots = job.object >= kSharedObject ? 1 : window_of(job);
  const bool mixed = job.mode == aio::LoadKind::mixed;
  const bool write = job.mode == aio::LoadKind::write || (mixed && i % 2 == 1);
  const int64_t half = job.size / job.object / 2;
  const int64_t place = mixed ? i / 2 + (write ? half : 0) : i;
  return {.operation = write ? aio::IoOperation::write : aio::IoOperation::read,
          .io_class = write ? aio::IoClass::write_back : aio::IoClass::prefetch,
          .file = {},
          .offset = place * object,
          .data = memory.data() + i % slots * object,
          .length = job.object};
}

}  // namespace

OurRunner::OurRunner(aio::SubmissionMode submission, bool adaptive_depth, Bytes memory_size)
    : submission_(submission), adaptive_depth_(adaptive_depth), memory_(memory_size, false) {}

Bytes OurRunner::memory_for(Bytes object, Bytes in_flight_max) {
  return object >= kSharedObject ? object : std::max(in_flight_max * 3 / 2, object * 4);
}

IoResult OurRunner::run(const IoJob& job) {
  aio::IoEngineOptions options;
  options.backend =
      job.kind == "threads" ? aio::BackendKind::thread_pool : aio::BackendKind::io_uring;
  options.block_size = job.block;
  options.queue_depth = job.depth;
  options.submission = submission_;
  options.adaptive_depth = adaptive_depth_;
  const auto engine = aio::IoEngine::create(options);
  engine->register_memory(memory_.bytes());
  const aio::FileId file = engine->open(job.path, false);
  const int64_t count = job.size / job.object;
  const int64_t window = window_of(job);

  const double cpu_before = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  const int64_t refill = std::max<int64_t>(1, window / kRefills);
  std::deque<Completion> flying;
  for (int64_t i = 0; i < count; ++i) {
    if (static_cast<int64_t>(flying.size()) == window) {
      check_stopped();
      for (int64_t ended = 0; ended < refill; ++ended) {
        flying[static_cast<size_t>(refill - 1 - ended)].wait();
      }
      flying.erase(flying.begin(), flying.begin() + refill);
    }
    aio::IoRequest request = request_of(job, i, memory_.bytes());
    request.file = file;
    flying.push_back(engine->submit(request));
  }
  for (const Completion& completion : flying) {
    completion.wait();
  }
  const double seconds = seconds_since(begin);
  const double gigabytes = static_cast<double>((job.object * count).count()) / 1e9;
  const double cpu = cpu_seconds() - cpu_before;
  description_ = engine->description();
  return {.gb_per_second = gigabytes / seconds, .cpu_seconds_per_gb = cpu / gigabytes};
}

}  // namespace headrace::bench
