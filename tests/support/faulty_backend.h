#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "aio/backend.h"
#include "aio/engine.h"
#include "aio/thread_pool_backend.h"
#include "aio/uring_backend.h"
#include "base/error.h"

namespace headrace::test {

/// What can go wrong with one transfer, between the engine and the kernel.
enum class PartFault {
  none,
  cut_short,  ///< the kernel is asked for half of it
  fail,       ///< it is reported to have failed
  flip_bit,   ///< of what is written or was read
  tear,       ///< a write whose last block does not reach the disk
  misdirect,  ///< a write that lands one block further
  lose,       ///< a write that is reported as done and never happens
};

struct FaultChoice {
  PartFault fault = PartFault::none;
  int error_number = EIO;  ///< of `fail`
};

/// What a FaultyBackend does, shared with the test that changes it. Thread-safe.
class FaultPlan {
 public:
  using Choose = std::function<FaultChoice(const aio::PartRequest&)>;

  void set(Choose choose) {
    const std::lock_guard lock(mutex_);
    choose_ = std::move(choose);
  }
  /// The next `count` transfers of an operation, after `skip` ones, meet this.
  void hit(aio::IoOperation operation, FaultChoice choice, int count = 1, int skip = 0) {
    set([=, seen = 0](const aio::PartRequest& part) mutable {
      if (part.operation != operation) {
        return FaultChoice{};
      }
      const int number = seen++;
      return number >= skip && number < skip + count ? choice : FaultChoice{};
    });
  }
  void clear() { set({}); }
  /// Results of these calls from now on; 0: what the kernel says.
  void set_errors(int sync_error, int allocate_error) {
    const std::lock_guard lock(mutex_);
    sync_error_ = sync_error;
    allocate_error_ = allocate_error;
  }
  /// From now on syncs are reported as done and not done; what is written stays in a cache that
  /// lose_power() empties.
  void lie_about_syncs() {
    const std::lock_guard lock(mutex_);
    lies_ = true;
  }
  /// Every write since the last real sync of its file is undone. Close the engine first.
  void lose_power() {
    const std::lock_guard lock(mutex_);
    for (auto at = unsynced_.rbegin(); at != unsynced_.rend(); ++at) {
      const int file = ::open(at->path.c_str(), O_WRONLY | O_CLOEXEC);
      const auto length = static_cast<ssize_t>(at->before.size());
      if (file < 0 || ::pwrite(file, at->before.data(), at->before.size(), at->offset) != length) {
        throw std::runtime_error("cannot undo a write of " + at->path);
      }
      ::close(file);
    }
    unsynced_.clear();
  }
  int hits() const {
    const std::lock_guard lock(mutex_);
    return hits_;
  }

 private:
  friend class FaultyBackend;
  struct Write {
    std::string path;
    int64_t offset = 0;
    std::vector<std::byte> before;
  };

  FaultChoice choose(const aio::PartRequest& part) {
    const std::lock_guard lock(mutex_);
    const FaultChoice choice = choose_ ? choose_(part) : FaultChoice{};
    hits_ += choice.fault == PartFault::none ? 0 : 1;
    return choice;
  }

  mutable std::mutex mutex_;
  Choose choose_;
  int sync_error_ = 0;
  int allocate_error_ = 0;
  bool lies_ = false;
  int hits_ = 0;
  std::map<int, std::string> paths_;  ///< by handle
  std::vector<Write> unsynced_;       ///< while it lies
};

/// A backend over the kernel with faults between: transfers are changed on their way down, their
/// results on the way up, as the plan says.
class FaultyBackend final : public aio::Backend {
  template <class Read>
  auto locked(const Read& read) const {
    const std::lock_guard lock(plan_->mutex_);
    return read();
  }

 public:
  FaultyBackend(std::unique_ptr<aio::Backend> backend, std::shared_ptr<FaultPlan> plan)
      : backend_(std::move(backend)), plan_(std::move(plan)) {}

  int open(const std::string& path, bool create, bool direct) override {
    const int handle = backend_->open(path, create, direct);
    const std::lock_guard lock(plan_->mutex_);
    plan_->paths_[handle] = path;
    return handle;
  }
  int allocate(int handle, int64_t size) override {
    const int error = locked([&] { return plan_->allocate_error_; });
    return error != 0 ? -error : backend_->allocate(handle, size);
  }
  int set_size(int handle, int64_t size) override { return backend_->set_size(handle, size); }
  int sync(int handle) override {
    const auto [error, lies] = locked([&] { return std::pair(plan_->sync_error_, plan_->lies_); });
    return error != 0 ? -error : lies ? 0 : backend_->sync(handle);
  }
  int close(int handle) override { return backend_->close(handle); }
  void register_file(int handle) override { backend_->register_file(handle); }
  void unregister_file(int handle) override { backend_->unregister_file(handle); }
  void register_memory(std::span<std::byte> memory) override { backend_->register_memory(memory); }
  void wake() override { backend_->wake(); }
  std::string name() const override { return backend_->name(); }
  std::string features() const override { return backend_->features(); }

  void submit(std::span<const aio::PartRequest> parts) override {
    std::vector<aio::PartRequest> batch;
    for (const aio::PartRequest& part : parts) {
      remember_before(part);
      batch.push_back(changed(part, plan_->choose(part)));
    }
    backend_->submit(batch);
  }

  size_t reap(std::span<aio::PartCompletion> ready) override {
    const size_t count = backend_->reap(ready);
    for (aio::PartCompletion& completion : ready.first(count)) {
      const auto found = flying_.find(completion.token);
      if (found != flying_.end()) {
        completion.result = result_of(found->second, completion.result);
        completion.expected = found->second.part.length;
        flying_.erase(found);
      }
    }
    return count;
  }

 private:
  static constexpr uint32_t kBlock = 4096;
  using Memory = std::shared_ptr<std::byte>;
  struct Flying {
    aio::PartRequest part;  ///< as the engine asked
    FaultChoice choice;
    Memory memory;  ///< in the place of the engine's
  };

  static Memory memory_of(uint32_t size) {
    const size_t whole = (size_t{size} + kBlock) / kBlock * kBlock;
    return {static_cast<std::byte*>(std::aligned_alloc(kBlock, whole)), std::free};
  }

  void remember_before(const aio::PartRequest& part) {
    if (part.operation != aio::IoOperation::write || !locked([&] { return plan_->lies_; })) {
      return;
    }
    const Memory memory = memory_of(part.length);
    const ssize_t there = ::pread(part.handle, memory.get(), part.length, part.offset);
    const std::lock_guard lock(plan_->mutex_);
    FaultPlan::Write& write = plan_->unsynced_.emplace_back();
    write.path = plan_->paths_.at(part.handle);
    write.offset = part.offset;
    write.before.resize(part.length);
    std::memcpy(write.before.data(), memory.get(), there > 0 ? static_cast<size_t>(there) : 0);
  }

  /// What the kernel is asked for instead.
  aio::PartRequest changed(const aio::PartRequest& part, FaultChoice choice) {
    const bool is_write = part.operation == aio::IoOperation::write;
    const bool is_long = part.length > kBlock;
    if (choice.fault == PartFault::tear && !is_long) {
      choice.fault = PartFault::lose;
    }
    aio::PartRequest to = part;
    Flying flying{part, choice, nullptr};
    switch (choice.fault) {
      case PartFault::none:
        return part;
      case PartFault::cut_short:
        to.length = is_long ? part.length / 2 / kBlock * kBlock : part.length;
        to.length = std::max(to.length, kBlock);
        break;
      case PartFault::tear:
        to.length = is_write ? part.length - kBlock : part.length;
        break;
      case PartFault::misdirect:
        to.offset = is_write ? part.offset + kBlock : part.offset;
        break;
      case PartFault::lose:
        if (is_write) {
          flying.memory = memory_of(part.length);
          to.data = flying.memory.get();
          to.operation = aio::IoOperation::read;
        }
        break;
      case PartFault::flip_bit:
        if (is_write) {
          flying.memory = memory_of(part.length);
          std::memcpy(flying.memory.get(), part.data, part.length);
          flying.memory.get()[part.length / 2] ^= std::byte{4};
          to.data = flying.memory.get();
        }
        break;
      case PartFault::fail:
        break;
    }
    flying_[part.token] = std::move(flying);
    return to;
  }

  /// What the engine is told.
  static int32_t result_of(const Flying& flying, int32_t result) {
    const bool is_write = flying.part.operation == aio::IoOperation::write;
    switch (flying.choice.fault) {
      case PartFault::fail:
        return -flying.choice.error_number;
      case PartFault::tear:
      case PartFault::lose:
        return is_write ? static_cast<int32_t>(flying.part.length) : result;
      case PartFault::flip_bit:
        if (!is_write && result > 0) {
          flying.part.data[result / 2] ^= std::byte{4};
        }
        return result;
      default:
        return result;
    }
  }

  std::unique_ptr<aio::Backend> backend_;
  std::shared_ptr<FaultPlan> plan_;
  std::map<uint32_t, Flying> flying_;  ///< by token
};

/// An engine over the kernel, by io_uring or threads as `options` say, with this plan's faults
/// below it. Null where io_uring is refused here.
inline std::unique_ptr<aio::IoEngine> make_faulty_engine(const aio::IoEngineOptions& options,
                                                         const std::shared_ptr<FaultPlan>& plan) {
  std::unique_ptr<aio::Backend> backend;
  if (options.backend == aio::BackendKind::thread_pool) {
    backend = std::make_unique<aio::ThreadPoolBackend>(options.threads);
  } else {
    try {
      backend = aio::UringBackend::create(aio::largest_depth(options), options.submission);
    } catch (const IoError&) {
      return nullptr;
    }
  }
  return aio::create_engine_with_backend(std::make_unique<FaultyBackend>(std::move(backend), plan),
                                         options);
}

}  // namespace headrace::test
