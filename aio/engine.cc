#include "aio/engine.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seconds.h"

namespace headrace::aio {

namespace {

constexpr size_t kReadyMax = 128;  ///< ends reaped before they are dispatched

std::string no_space_text(const std::string& path, Bytes size) {
  struct statvfs status {};
  std::string free;
  if (::statvfs(path.c_str(), &status) == 0) {
    free = fmt::format(", {} are free", format_bytes(Bytes(static_cast<int64_t>(status.f_bavail)) *
                                                     static_cast<int64_t>(status.f_frsize)));
  }
  return fmt::format("cannot allocate {}, no space left{}: free some or use another path",
                     format_bytes(size), free);
}

}  // namespace

void Engine::BusyClock::note(bool busy_now) {
  if (busy_now == is_busy) {
    return;
  }
  const Clock::time_point now = Clock::now();
  if (is_busy) {
    seconds += seconds_between(since, now);
  }
  is_busy = busy_now;
  since = now;
}

double Engine::BusyClock::total() const {
  return seconds + (is_busy ? seconds_since(since) : 0.0);
}

/// Keeps a file open for the length of one call.
class Engine::Use {
 public:
  Use(Engine& engine, FileId file) : engine_(engine), file_(engine.begin_use(file)) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { engine_.end_use(*file_); }
  const OpenFile& file() const { return *file_; }

 private:
  Engine& engine_;
  std::shared_ptr<OpenFile> file_;
};

int largest_depth(const IoEngineOptions& options) {
  return options.adaptive_depth ? std::min(kDepthMax, kAdaptiveDepthGrowth * options.queue_depth)
                                : options.queue_depth;
}

Engine::Engine(std::unique_ptr<Backend> backend, const IoEngineOptions& options)
    : options_(options),
      backend_(std::move(backend)),
      scheduler_(options.block_size, largest_depth(options)),
      ready_(kReadyMax) {
  scheduler_.set_depth(options.queue_depth);
  if (options.adaptive_depth) {
    tuner_.emplace(options.queue_depth, std::min(kAdaptiveDepthMin, options.queue_depth),
                   largest_depth(options), options.block_size.count());
  }
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  post([&] { stopping_ = true; });
  thread_.join();
  if (backend_ != nullptr) {
    close_files();
  }
}

void Engine::close_files() {
  for (const std::shared_ptr<OpenFile>& file : files_) {
    if (file == nullptr) {
      continue;
    }
    if (const int result = backend_->close(file->handle); result < 0) {
      log_debug("closing {} failed with errno {}", file->path, -result);
    }
  }
}

/// Changes what the engine's thread looks at, and wakes it.
template <class Post>
void Engine::post(const Post& post) {
  const std::lock_guard lock(mutex_);
  post();
  // Under the lock, so that the destructor cannot pass a wake-up under way.
  if (std::exchange(is_waiting_, false)) {
    backend_->wake();
  }
}

void Engine::call_on_thread(const std::function<void()>& call) {
  if (std::this_thread::get_id() == thread_.get_id()) {
    call();
    return;
  }
  Promise promise;
  post([&] {
    if (broken_) {
      promise.set_failed(broken_);
      return;
    }
    calls_.emplace_back([&promise, &call] {
      try {
        call();
        promise.set_done();
      } catch (...) {
        promise.set_failed(std::current_exception());
      }
    });
  });
  promise.completion().wait();
}

int Engine::open_handle(const std::string& path, bool create, bool& direct) {
  int handle = backend_->open(path, create, direct);
  if (handle == -EINVAL && direct) {
    direct = false;
    handle = backend_->open(path, create, false);
    if (handle >= 0) {
      log_message_once(LogLevel::info, "aio direct " + path.substr(0, path.rfind('/')),
                       fmt::format("{}: the file system refuses direct I/O; transfers go through "
                                   "the page cache, which costs host memory and a copy",
                                   path));
    }
  }
  if (handle < 0) {
    throw IoError(create ? "cannot open or create a file" : "cannot open a file",
                  IoError::Where{.path = path, .error_number = -handle});
  }
  return handle;
}

FileId Engine::open(const std::string& path, bool create) {
  auto file = std::make_shared<OpenFile>();
  file->path = path;
  file->direct = options_.direct;
  file->handle = open_handle(path, create, file->direct);
  try {
    call_on_thread([&] { backend_->register_file(file->handle); });
  } catch (...) {
    backend_->close(file->handle);
    throw;
  }
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(file));
  return FileId{static_cast<uint32_t>(files_.size() - 1)};
}

/// With the lock held.
std::shared_ptr<OpenFile>& Engine::find(FileId file) {
  const auto index = static_cast<size_t>(file);
  HR_CHECK(index < files_.size() && files_[index] != nullptr, "file {} is not open", index);
  return files_[index];
}

std::shared_ptr<OpenFile> Engine::begin_use(FileId file) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<OpenFile>& open = find(file);
  ++open->uses;
  return open;
}

void Engine::end_use(OpenFile& file) {
  const std::lock_guard lock(mutex_);
  --file.uses;
  uses_changed_.notify_all();
}

void Engine::close(FileId file) {
  std::shared_ptr<OpenFile> closing;
  {
    std::unique_lock lock(mutex_);
    closing = std::exchange(find(file), nullptr);  // from here on it is not open
    HR_CHECK(closing->uses == 0 || std::this_thread::get_id() != thread_.get_id(),
             "{}: closed by a callback while {} requests are under way", closing->path,
             closing->uses);
    uses_changed_.wait(lock, [&] { return closing->uses == 0; });
  }
  try {
    call_on_thread([&] { backend_->unregister_file(closing->handle); });
  } catch (const Error& error) {  // the backend is lost; the handle is given back all the same
    log_debug("closing {}: {}", closing->path, error.what());
  }
  if (const int result = backend_->close(closing->handle); result < 0) {
    throw IoError("cannot close a file",
                  IoError::Where{.path = closing->path, .error_number = -result});
  }
}

void Engine::allocate(FileId file, Bytes size) {
  HR_CHECK(size.count() >= 0, "size={}", size);
  const Use use(*this, file);
  const std::string& path = use.file().path;
  const IoError::Where where{.path = path, .expected_bytes = size.count()};
  int result = backend_->allocate(use.file().handle, size.count());
  if (result == -EOPNOTSUPP || result == -ENOSYS) {
    log_message_once(
        LogLevel::info, "aio allocate",
        fmt::format("{}: the file system cannot allocate ahead; its files grow as they "
                    "are written, and a full disk shows only then",
                    path));
    result = backend_->set_size(use.file().handle, size.count());
  }
  if (result < 0) {
    auto failed = where;
    failed.error_number = -result;
    throw IoError(
        result == -ENOSPC ? no_space_text(path, size) : "cannot allocate " + format_bytes(size),
        failed);
  }
}

void Engine::sync(FileId file) {
  const Use use(*this, file);
  if (const int result = backend_->sync(use.file().handle); result < 0) {
    throw IoError("fdatasync failed, data written before may not be on the device",
                  IoError::Where{.path = use.file().path, .error_number = -result});
  }
}

void Engine::register_memory(std::span<std::byte> memory) {
  call_on_thread([&] { backend_->register_memory(memory); });
}

void Engine::check_request(const IoRequest& request, const OpenFile& file) const {
  const int64_t length = request.length.count();
  HR_CHECK(request.offset >= 0 && length >= 0 && request.offset <= INT64_MAX - length,
           "{}: offset={} length={}", file.path, request.offset, length);
  HR_CHECK(length == 0 || request.data != nullptr, "{}: no memory for {} bytes", file.path, length);
  if (file.direct) {
    const auto address = static_cast<int64_t>(reinterpret_cast<intptr_t>(request.data));
    HR_CHECK(((request.offset | length | address) & (kDirectAlignment - 1)) == 0,
             "{}: direct I/O needs multiples of {}: offset={} length={} address={:#x}", file.path,
             kDirectAlignment, request.offset, length, address);
  }
}

Completion Engine::submit(const IoRequest& request) {
  auto pending = std::make_shared<PendingRequest>();
  pending->request = request;
  Completion completion = pending->promise.completion();
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<OpenFile>& file = find(request.file);
  check_request(request, *file);
  if (request.length.count() == 0) {
    return Completion::done();
  }
  if (broken_) {
    return Completion::failed(broken_);
  }
  pending->file = file;
  ++file->uses;
  posted_.push_back(std::move(pending));
  if (is_waiting_ && can_send_[static_cast<size_t>(request.operation)]) {
    is_waiting_ = false;
    backend_->wake();
  }
  return completion;
}

Bytes Engine::alignment() const {
  return Bytes(options_.direct ? kDirectAlignment : 1);
}

std::string Engine::description() const {
  bool any_direct = false;
  bool any_buffered = false;
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<OpenFile>& file : files_) {
      any_direct = any_direct || (file != nullptr && file->direct);
      any_buffered = any_buffered || (file != nullptr && !file->direct);
    }
  }
  std::string mode = options_.direct && !(any_buffered && !any_direct) ? "O_DIRECT" : "buffered";
  if (any_direct && any_buffered) {
    mode = "O_DIRECT where the file system allows it";
  }
  const std::string features = backend_->features();
  return backend_->name() + ", " + mode + (features.empty() ? "" : ", " + features);
}

IoStatistics Engine::statistics() const {
  const std::lock_guard lock(mutex_);
  IoStatistics statistics = statistics_;
  statistics.read_busy_seconds = read_clock_.total();
  statistics.write_busy_seconds = write_clock_.total();
  return statistics;
}

}  // namespace headrace::aio
