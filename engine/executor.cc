#include "engine/executor.h"

#include <exception>
#include <memory>
#include <utility>

#include "engine/schedule_run.h"

namespace headrace::engine {

using scheduler::Lane;

Executor::Executor(tiers::TieredStore& store, device::Stream& compute)
    : store_(store), compute_(compute), cpu_worker_("hr-optimizer") {}

void Executor::on_cpu_worker(const std::function<void()>& call) {
  std::exception_ptr error;
  cpu_worker_.post([&] {
    try {
      call();
    } catch (...) {
      error = std::current_exception();
    }
  });
  cpu_worker_.drain();
  if (error) {
    std::rethrow_exception(error);
  }
}

/// What an operation has posted before it failed still works on its bytes.
void Executor::wait_for_posted_work() {
  try {
    compute_.synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the operation's own error is reported
  }
}

Completion Executor::post(Lane lane, std::function<void(UseBytes)> work,
                          std::vector<std::span<std::byte>> bytes,
                          const std::vector<device::EventRef>& behind) {
  if (lane == Lane::compute) {
    try {
      for (const device::EventRef& event : behind) {
        compute_.wait(event);
      }
      work(bytes);
      return compute_.record_completion();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      wait_for_posted_work();
      return Completion::failed(error);
    }
  }
  auto promise = std::make_shared<Promise>();
  Completion end = promise->completion();
  cpu_worker_.post([promise, work = std::move(work), bytes = std::move(bytes)] {
    try {
      work(bytes);
    } catch (...) {
      promise->set_failed(std::current_exception());
      return;
    }
    promise->set_done();
  });
  return end;
}

RunReport Executor::run(const scheduler::Trace& trace, const scheduler::Schedule& schedule,
                        const OperationBody& body, bool record) {
  const auto start = [&](uint32_t operation, PinnedUses uses, Completion::Callback end) {
    post(
        trace.operations[operation].lane,
        [&body, operation](UseBytes bytes) { body(operation, bytes); }, std::move(uses.bytes),
        uses.behind)
        .on_done(std::move(end));
  };
  return ScheduleRun(store_, trace, schedule, start, OperationStart::when_ready, record).run();
}

}  // namespace headrace::engine
