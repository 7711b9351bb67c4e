// Chooses the backend of an engine.

#include <fmt/format.h>

#include <cerrno>

#include "aio/engine.h"
#include "aio/limited_backend.h"
#include "aio/simulated_backend.h"
#include "aio/thread_pool_backend.h"
#include "aio/uring_backend.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::aio {

namespace {

constexpr int kThreadsMax = 256;

void check(const IoEngineOptions& options) {
  const int64_t block = options.block_size.count();
  const int64_t multiple = options.direct ? kDirectAlignment : 1;
  if (block < multiple || block > kPartBytesMax || block % multiple != 0) {
    throw InputError(
        fmt::format("I/O block size (aio.block_size) is {}: use a multiple of {} up to {}", block,
                    multiple, kPartBytesMax));
  }
  if (options.queue_depth < 1 || options.queue_depth > kDepthMax) {
    throw InputError(fmt::format("I/O queue depth (aio.queue_depth) is {}: use 1 to {}",
                                 options.queue_depth, kDepthMax));
  }
  const IoLimits& limits = options.limits;
  if (limits.read_bytes_per_second < 0 || limits.write_bytes_per_second < 0 ||
      limits.both_bytes_per_second < 0 || limits.latency.count() < 0) {
    throw InputError(fmt::format(
        "I/O limits (headrace.nvme_read_limit, nvme_write_limit, nvme_limit) are {}, {} and "
        "{} bytes per second, latency {} ns: use values above 0, or 0 for no limit",
        limits.read_bytes_per_second, limits.write_bytes_per_second, limits.both_bytes_per_second,
        limits.latency.count()));
  }
  if (options.threads < 1 || options.threads > kThreadsMax) {
    throw InputError(fmt::format("I/O threads are {}: use 1 to {}", options.threads, kThreadsMax));
  }
}

std::unique_ptr<Backend> create_uring_or_threads(const IoEngineOptions& options) {
  try {
    return UringBackend::create(largest_depth(options), options.submission);
  } catch (const IoError& error) {
    const bool forbidden = error.where().error_number == EPERM;
    log_message_once(
        LogLevel::info, "aio backend",
        fmt::format("{}{}; using {} threads of pread and pwrite, which cost CPU time and reach a "
                    "lower rate",
                    error.what(),
                    forbidden ? ": a sandbox or kernel.io_uring_disabled forbids io_uring" : "",
                    options.threads));
    return std::make_unique<ThreadPoolBackend>(options.threads);
  }
}

}  // namespace

const char* to_string(SubmissionMode mode) {
  switch (mode) {
    case SubmissionMode::interrupt:
      return "interrupt";
    case SubmissionMode::sq_poll:
      return "sq_poll";
    case SubmissionMode::io_poll:
      return "io_poll";
  }
  return "unknown";
}

std::unique_ptr<IoEngine> create_engine_with_backend(std::unique_ptr<Backend> backend,
                                                     const IoEngineOptions& options) {
  check(options);
  if (options.limits.any()) {
    backend = std::make_unique<LimitedBackend>(std::move(backend), options.limits);
  }
  return std::make_unique<Engine>(std::move(backend), options);
}

std::unique_ptr<IoEngine> create_simulated_engine(std::shared_ptr<SimulatedDisk> disk,
                                                  const IoEngineOptions& options) {
  return create_engine_with_backend(std::make_unique<SimulatedBackend>(std::move(disk)), options);
}

std::unique_ptr<IoEngine> IoEngine::create(const IoEngineOptions& options) {
  check(options);
  switch (options.backend) {
    case BackendKind::io_uring:
      return create_engine_with_backend(create_uring_or_threads(options), options);
    case BackendKind::thread_pool:
      return create_engine_with_backend(std::make_unique<ThreadPoolBackend>(options.threads),
                                        options);
    case BackendKind::simulated:
      return create_simulated_engine(std::make_shared<SimulatedDisk>(SimulatedDiskOptions{}),
                                     options);
  }
  throw InternalError("internal error: unknown I/O backend");
}

}  // namespace headrace::aio
