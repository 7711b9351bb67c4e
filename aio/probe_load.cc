#include "aio/probe_load.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/seconds.h"

namespace headrace::aio {

namespace {

using Clock = std::chrono::steady_clock;

/// One run. Completions are noted on the engine's thread; the caller's thread sends.
class ClosedLoop {
 public:
  ClosedLoop(IoEngine& engine, const LoadPlan& plan)
      : engine_(engine),
        plan_(plan),
        blocks_(plan.file_size / plan.block_size),
        sent_at_(plan.memory.size() / static_cast<size_t>(plan.block_size.count())) {
    HR_CHECK(plan.slots > 0 && blocks_ >= 2 && sent_at_.size() >= static_cast<size_t>(plan.slots),
             "slots={} blocks={} memory={}", plan.slots, blocks_, plan.memory.size());
    for (size_t place = 0; place < sent_at_.size(); ++place) {
      free_.push_back(place);
    }
  }
  ClosedLoop(const ClosedLoop&) = delete;
  ClosedLoop& operator=(const ClosedLoop&) = delete;
  /// Callbacks refer to this object: wait for them.
  ~ClosedLoop() { drain(); }

  LoadResult run() {
    begin_ = Clock::now();
    counted_from_ = begin_ + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(plan_.warm_seconds));
    while (const auto place = next_place()) {
      send(*place);
    }
    if (plan_.one_pass) {
      drain();  // the whole file counts
    }
    const std::lock_guard lock(mutex_);
    is_counting_ = false;
    if (error_) {
      std::rethrow_exception(error_);
    }
    if (is_cancelled()) {
      throw InterruptedError("the probe was stopped; its test file is removed");
    }
    const Clock::time_point now = Clock::now();
    result_.seconds = seconds_between(counted_from_, now);
    finish_samples(seconds_between(begin_, now));
    return std::move(result_);
  }

 private:
  bool is_cancelled() const { return plan_.cancelled != nullptr && plan_.cancelled->load(); }

  /// Waits until one more may be in flight; none when the run is over.
  std::optional<size_t> next_place() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const bool is_over = seconds_between(begin_, Clock::now()) >= plan_.seconds ||
                           (plan_.one_pass && result_.blocks_sent == blocks_);
      if (error_ || is_over || is_cancelled()) {
        return std::nullopt;
      }
      if (sent_at_.size() - free_.size() < static_cast<size_t>(plan_.slots)) {
        const size_t place = free_.front();
        free_.pop_front();
        return place;
      }
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }

  void send(size_t place) {
    const int64_t sent = result_.blocks_sent++;
    const bool is_write =
        plan_.kind == LoadKind::write || (plan_.kind == LoadKind::mixed && sent % 2 == 1);
    int64_t block = sent % blocks_;
    if (plan_.kind == LoadKind::mixed) {
      const int64_t half = blocks_ / 2;
      block = is_write ? half + writes_++ % (blocks_ - half) : reads_++ % half;
    }
    const int64_t size = plan_.block_size.count();
    sent_at_[place] = Clock::now();
    const IoRequest request{.operation = is_write ? IoOperation::write : IoOperation::read,
                            .io_class = is_write ? IoClass::write_back : IoClass::demand,
                            .file = plan_.file,
                            .offset = block * size,
                            .data = plan_.memory.data() + static_cast<int64_t>(place) * size,
                            .length = plan_.block_size};
    try {
      engine_.submit(request).on_done([this, place, is_write](const std::exception_ptr& error) {
        end(place, is_write, error);
      });
    } catch (...) {
      end(place, is_write, std::current_exception());
    }
  }

  void end(size_t place, bool is_write, const std::exception_ptr& error) {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    if (error && !error_) {
      error_ = error;
    }
    if (!error && is_counting_ && plan_.sample_seconds > 0) {
      note_sample(now);
    }
    if (!error && is_counting_ && now >= counted_from_) {
      result_.bytes += plan_.block_size.count();
      (is_write ? result_.write_ms : result_.read_ms)
          .push_back(seconds_between(sent_at_[place], now) * 1e3);
    }
    free_.push_back(place);
    changed_.notify_all();  // under the lock: the waiter may destroy this object
  }

  /// With the lock held.
  void note_sample(Clock::time_point now) {
    const auto interval = static_cast<size_t>(seconds_between(begin_, now) / plan_.sample_seconds);
    if (interval >= sample_bytes_.size()) {
      sample_bytes_.resize(interval + 1);
    }
    sample_bytes_[interval] += plan_.block_size.count();
  }

  void finish_samples(double seconds) {
    if (plan_.sample_seconds <= 0) {
      return;
    }
    result_.samples.interval_seconds = plan_.sample_seconds;
    sample_bytes_.resize(static_cast<size_t>(seconds / plan_.sample_seconds));
    for (const int64_t bytes : sample_bytes_) {
      result_.samples.rates.push_back(static_cast<double>(bytes) / plan_.sample_seconds);
    }
  }

  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_.size() == sent_at_.size(); });
  }

  IoEngine& engine_;
  const LoadPlan& plan_;
  const int64_t blocks_;
  Clock::time_point begin_;
  Clock::time_point counted_from_;
  int64_t reads_ = 0;
  int64_t writes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<size_t> free_;  ///< places of a block in memory, the longest unused first
  std::vector<Clock::time_point> sent_at_;  ///< by place; written while it is the sender's
  LoadResult result_;
  std::vector<int64_t> sample_bytes_;
  std::exception_ptr error_;
  bool is_counting_ = true;
};

}  // namespace

LoadResult run_load(IoEngine& engine, const LoadPlan& plan) {
  ClosedLoop loop(engine, plan);
  return loop.run();
}

}  // namespace headrace::aio
