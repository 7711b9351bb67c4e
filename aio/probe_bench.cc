#include "aio/probe_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <thread>

#include "aio/probe_storage.h"
#include "aio/probe_verdicts.h"
#include "base/error.h"
#include "base/median.h"
#include "base/seconds.h"

namespace headrace::aio {

namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kMultiple{4096};
constexpr Bytes kFreeMargin{64 << 20};
constexpr int kTasksMax = 256;

/// One buffer and one file at a time, with an engine of its own. One thread uses it.
class Task {
 public:
  Task(const IoBenchOptions& options, std::string folder, uint64_t seed)
      : options_(options), folder_(std::move(folder)), seed_(seed), buffer_(options.io_size) {
    IoEngineOptions engine;
    engine.block_size = options.block_size;
    engine.queue_depth = options.queue_depth * options.parallelism;
    engine_ = IoEngine::create(engine);
    engine_->register_memory(buffer_.bytes());
    if (options.validate) {
      other_ = std::make_unique<HugeMemory>(options.io_size);
    }
  }

  /// Everything that is not timed. Contents differ from loop to loop, so that old ones cannot pass
  /// for new ones.
  void prepare(int loop) {
    const bool is_new = file_ == nullptr || options_.new_file_each_loop;
    if (is_new) {
      file_ = std::make_unique<ScratchFile>(folder_);
    }
    if (!options_.read) {
      buffer_.fill_random(seed_ + static_cast<uint64_t>(loop));
      return;
    }
    if (is_new) {
      HugeMemory& source = options_.validate ? *other_ : buffer_;
      source.fill_random(seed_ + static_cast<uint64_t>(loop));
      const FileId file = engine_->open(file_->path(), false);
      engine_->allocate(file, options_.io_size);
      transfer(file, IoOperation::write, source);
      engine_->sync(file);
      engine_->close(file);
    }
    std::memset(buffer_.data(), 0, static_cast<size_t>(options_.io_size.count()));
  }

  IoBenchLoop run() {
    const auto begin = Clock::now();
    const FileId file = engine_->open(file_->path(), false);
    if (!options_.read) {
      engine_->allocate(file, options_.io_size);
    }
    const auto opened = Clock::now();
    transfer(file, options_.read ? IoOperation::read : IoOperation::write, buffer_);
    const auto transferred = Clock::now();
    description_ = engine_->description();
    engine_->close(file);
    return {.task = seconds_between(opened, transferred),
            .end_to_end = seconds_between(begin, Clock::now())};
  }

  void validate() {
    if (!options_.read) {
      const FileId file = engine_->open(file_->path(), false);
      transfer(file, IoOperation::read, *other_);
      engine_->close(file);
    }
    const auto size = static_cast<size_t>(options_.io_size.count());
    if (std::memcmp(buffer_.data(), other_->data(), size) != 0) {
      const std::byte* const begin = buffer_.data();
      const std::byte* const expected = other_->data();
      const auto* const differing = std::mismatch(begin, begin + size, expected).first;
      throw IoError("what was read is not what was written",
                    IoError::Where{.path = file_->name(), .offset = differing - begin});
    }
  }

  const std::string& description() const { return description_; }

 private:
  void transfer(FileId file, IoOperation operation, HugeMemory& memory) {
    const int64_t total = options_.io_size.count();
    const int64_t queue = options_.block_size.count() * options_.queue_depth * options_.parallelism;
    const int64_t step = options_.in_batches ? queue : total;
    for (int64_t at = 0; at < total; at += step) {
      engine_
          ->submit(
              {.operation = operation,
               .io_class = operation == IoOperation::read ? IoClass::demand : IoClass::write_back,
               .file = file,
               .offset = at,
               .data = memory.data() + at,
               .length = Bytes(std::min(step, total - at))})
          .wait();
    }
  }

  const IoBenchOptions& options_;
  std::string folder_;
  uint64_t seed_;
  HugeMemory buffer_;
  std::unique_ptr<HugeMemory> other_;  ///< to compare with
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<IoEngine> engine_;
  std::string description_;
};

/// Runs `work` on every task at once and rethrows the first error.
template <class Work>
void on_all(std::vector<std::unique_ptr<Task>>& tasks, const Work& work) {
  std::vector<std::exception_ptr> errors(tasks.size());
  std::vector<std::thread> threads;
  threads.reserve(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

void check(const IoBenchOptions& options) {
  const auto positive = [](int64_t value, const char* what) {
    if (value < 1) {
      throw InputError(fmt::format("{} is {}: use at least 1", what, value));
    }
  };
  positive(options.tasks_per_folder, "--multi_process");
  positive(options.queue_depth, "--queue_depth");
  positive(options.parallelism, "--io_parallel");
  positive(options.loops, "--loops");
  if (options.warmup_loops < 0) {
    throw InputError(fmt::format("--warmup_loops is {}: use at least 0", options.warmup_loops));
  }
  if (options.io_size < kMultiple || options.io_size.count() % kMultiple.count() != 0) {
    throw InputError(fmt::format("--io_size is {}: direct transfers need a multiple of {} bytes",
                                 options.io_size, kMultiple));
  }
  if (options.folders.empty()) {
    throw InputError("no folder is given: use --folder or --folder_to_device_mapping");
  }
  const auto tasks = static_cast<int64_t>(options.folders.size()) * options.tasks_per_folder;
  if (tasks > kTasksMax) {
    throw InputError(fmt::format("{} tasks at once: use at most {}", tasks, kTasksMax));
  }
  const Bytes memory = options.io_size * tasks * (options.validate ? 2 : 1);
  if (memory > options.memory_limit) {
    throw CapacityError(
        fmt::format("{} tasks with buffers of {}{} need {} of memory, {} are free: use a smaller "
                    "--io_size",
                    tasks, format_bytes(options.io_size),
                    options.validate ? " and as much to compare with" : "", format_bytes(memory),
                    format_bytes(options.memory_limit)));
  }
  std::map<std::string, Bytes> needed;  // folders on one file system share its space
  for (const std::string& folder : options.folders) {
    const std::string id = file_system_id_of(folder);
    Bytes& sum = needed[id.empty() ? folder : id];
    sum += options.io_size * options.tasks_per_folder;
    if (const Bytes free = free_space_of(folder); free < sum + kFreeMargin) {
      throw CapacityError(
          fmt::format("the files need {} in {}, {} are free: use a smaller "
                      "--io_size",
                      format_bytes(sum + kFreeMargin), folder, format_bytes(free)));
    }
  }
}

}  // namespace

IoBenchReport run_io_bench(const IoBenchOptions& options) {
  check(options);
  std::vector<std::unique_ptr<Task>> tasks;
  for (const std::string& folder : options.folders) {
    for (int i = 0; i < options.tasks_per_folder; ++i) {
      tasks.push_back(std::make_unique<Task>(options, folder, tasks.size() << 32U));
    }
  }
  IoBenchReport report{.read = options.read,
                       .io_size = options.io_size,
                       .tasks = static_cast<int64_t>(tasks.size()),
                       .validated = options.validate,
                       .engine = {},
                       .loops = {}};
  for (int loop = 0; loop < options.warmup_loops + options.loops; ++loop) {
    if (options.cancelled != nullptr && options.cancelled->load()) {
      throw InterruptedError("the benchmark was stopped; its files are removed");
    }
    on_all(tasks, [&](size_t i) { tasks[i]->prepare(loop); });
    std::vector<IoBenchLoop> times(tasks.size());
    on_all(tasks, [&](size_t i) { times[i] = tasks[i]->run(); });
    if (options.validate) {
      on_all(tasks, [&](size_t i) { tasks[i]->validate(); });
    }
    if (loop >= options.warmup_loops || options.count_warmup) {
      IoBenchLoop slowest;
      for (const IoBenchLoop& time : times) {
        slowest.task = std::max(slowest.task, time.task);
        slowest.end_to_end = std::max(slowest.end_to_end, time.end_to_end);
      }
      report.loops.push_back(slowest);
    }
  }
  report.engine = tasks.front()->description();
  return report;
}

std::string render(const IoBenchReport& report) {
  const char* const name = report.read ? "Read" : "Write";
  const double bytes =
      static_cast<double>(report.io_size.count()) * static_cast<double>(report.tasks);
  const auto count = static_cast<double>(report.loops.size());
  double task = 0;
  double end_to_end = 0;
  std::vector<double> rates;
  rates.reserve(report.loops.size());
  for (const IoBenchLoop& loop : report.loops) {
    task += loop.task / count;
    end_to_end += loop.end_to_end / count;
    rates.push_back(bytes / loop.task);
  }
  const double gib = static_cast<double>(kGiB.count());
  std::string text = fmt::format("Task {} Latency = {:.6f} sec\n", name, task);
  text += fmt::format("Task {} Speed = {:.4f} GB/sec\n", name, bytes / task / gib);
  text += fmt::format("E2E {} Latency = {:.6f} sec\n", name, end_to_end);
  text += fmt::format("E2E {} Speed = {:.4f} GB/sec\n", name, bytes / end_to_end / gib);
  text += "  (GB = 2^30 bytes, as ds_io counts)\n";
  const auto [lowest, highest] = std::minmax_element(rates.begin(), rates.end());
  text += fmt::format("{}: median {} over {} loops ({} to {}; 10^9 bytes), {} x {} at once{}; {}\n",
                      report.read ? "read" : "write", format_rate(median(rates)), rates.size(),
                      format_rate(*lowest), format_rate(*highest), report.tasks,
                      format_bytes(report.io_size), report.validated ? ", contents compared" : "",
                      report.engine);
  return text;
}

}  // namespace headrace::aio
