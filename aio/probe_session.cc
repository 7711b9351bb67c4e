#include "aio/probe_session.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/seconds.h"

namespace headrace::aio {

namespace {

constexpr double kStandardSeconds = 30;
constexpr double kQuickSeconds = 8;

double seconds_of(const ProbeOptions& options) {
  if (options.seconds > 0) {
    return options.seconds;
  }
  return options.quick ? kQuickSeconds : kStandardSeconds;
}

}  // namespace

double fio_seconds(bool quick) {
  return quick ? 8 : 20;
}

ProbeSession::ProbeSession(const ProbeOptions& options)
    : options_(options),
      seconds_(seconds_of(options)),
      total_seconds_(seconds_ + (options.compare_fio ? fio_seconds(options.quick) : 0)),
      scratch_(options.path),
      memory_(options.memory) {}

double ProbeSession::elapsed() const {
  return seconds_since(begin_);
}

double ProbeSession::until(double share) const {
  const double phases = std::max(seconds_ / 2, seconds_ - phases_begin_);
  return std::max(0.0, phases_begin_ + share * phases - elapsed());
}

void ProbeSession::tell(const std::string& doing) const {
  if (options_.progress) {
    options_.progress({.done = std::min(0.99, elapsed() / total_seconds_), .doing = doing});
  }
}

void ProbeSession::throw_if_cancelled() const {
  if (options_.cancelled != nullptr && options_.cancelled->load()) {
    throw InterruptedError("the probe was stopped; its test file is removed");
  }
}

ProbeSession::Opened ProbeSession::open(Bytes block_size, int queue_depth,
                                        SubmissionMode mode) const {
  throw_if_cancelled();
  IoEngineOptions options;
  options.backend = options_.backend;
  options.block_size = block_size;
  options.queue_depth = queue_depth;
  options.submission = mode;
  Opened opened;
  opened.engine = IoEngine::create(options);
  opened.engine->register_memory(memory_.bytes());
  opened.file = opened.engine->open(scratch_.path(), false);
  return opened;
}

LoadPlan ProbeSession::plan(const Opened& opened, LoadKind kind, Bytes file_size, Bytes block_size,
                            int queue_depth, double seconds) const {
  return {.kind = kind,
          .file = opened.file,
          .file_size = file_size,
          .block_size = block_size,
          .slots = queue_depth,
          .memory = memory_.bytes(),
          .seconds = seconds,
          .cancelled = options_.cancelled};
}

}  // namespace headrace::aio
