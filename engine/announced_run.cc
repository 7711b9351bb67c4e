#include "engine/announced_run.h"

#include <utility>

#include "base/check.h"

namespace headrace::engine {

AnnouncedRun::AnnouncedRun(tiers::TieredStore& store, SerialWorker& driver,
                           std::shared_ptr<const scheduler::Trace> trace,
                           std::shared_ptr<const scheduler::Schedule> schedule)
    : driver_(driver),
      trace_(std::move(trace)),
      schedule_(std::move(schedule)),
      run_(
          store, *trace_, *schedule_,
          [this](uint32_t /*operation*/, PinnedUses uses, Completion::Callback end) {
            entered(std::move(uses.bytes), std::move(end));
          },
          OperationStart::when_announced, false) {
  driver_.post([this] { run(); });
}

AnnouncedRun::~AnnouncedRun() {
  if (end_) {
    leave(Completion::done());
  }
  run_.stop();
  driver_.drain();
}

/// On the driver's thread.
void AnnouncedRun::run() {
  RunReport report;
  std::exception_ptr error;
  try {
    report = run_.run();
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  report_ = std::move(report);
  error_ = error;
  has_ended_ = true;
  changed_.notify_all();
}

/// On the driver's thread.
void AnnouncedRun::entered(std::vector<std::span<std::byte>> bytes, Completion::Callback end) {
  const std::lock_guard lock(mutex_);
  bytes_ = std::move(bytes);
  end_ = std::move(end);
  changed_.notify_all();
}

std::vector<std::span<std::byte>> AnnouncedRun::enter() {
  HR_CHECK(remaining() > 0, "all {} operations of '{}' have come", trace_->operations.size(),
           trace_->name);
  run_.announce();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return bytes_.has_value() || has_ended_; });
  if (!bytes_) {
    HR_CHECK(error_ != nullptr, "the run of '{}' ended before its operation {}", trace_->name,
             announced_);
    std::rethrow_exception(error_);
  }
  ++announced_;
  return *std::exchange(bytes_, std::nullopt);
}

void AnnouncedRun::leave(const Completion& end) {
  HR_CHECK(end_ != nullptr, "leave without enter in '{}'", trace_->name);
  end.on_done(std::exchange(end_, nullptr));
}

RunReport AnnouncedRun::join() {
  driver_.drain();
  if (error_) {
    std::rethrow_exception(error_);
  }
  return std::exchange(report_, {});
}

RunReport AnnouncedRun::finish() {
  HR_CHECK(remaining() == 0, "{} operations of '{}' have not come", remaining(), trace_->name);
  return join();
}

RunReport AnnouncedRun::stop() {
  run_.stop();
  return join();
}

}  // namespace headrace::engine
