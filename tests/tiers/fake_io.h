#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "aio/io.h"
#include "base/error.h"
#include "base/serial_worker.h"

namespace headrace::tiers::test {

/// The last three are lies of a drive: the transfer is reported as done.
enum class Fault {
  none,
  fail,
  cut_short,
  corrupt,
  lose,      ///< a write that never reaches the disk
  tear,      ///< of which the last sectors do not
  misdirect  ///< which lands one block further
};

/// An IoEngine for tests: one thread of pread and pwrite, with faults on demand, a disk that can be
/// full, and a gate that holds transfers back.
class FakeIo final : public aio::IoEngine {
 public:
  using Hook = std::function<Fault(const aio::IoRequest&)>;

  explicit FakeIo(Bytes alignment = Bytes(4096)) : alignment_(alignment), worker_("fake-io") {}
  FakeIo(const FakeIo&) = delete;
  FakeIo& operator=(const FakeIo&) = delete;
  ~FakeIo() override { open_gate(); }

  void set_hook(Hook hook) {
    const std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
  }
  /// allocate() fails with ENOSPC when the files together would be larger.
  void set_disk_size(Bytes size) {
    const std::lock_guard lock(mutex_);
    disk_size_ = size;
  }
  void close_gate() {
    const std::lock_guard lock(mutex_);
    is_gate_open_ = false;
  }
  void open_gate() {
    const std::lock_guard lock(mutex_);
    is_gate_open_ = true;
    gate_changed_.notify_all();
  }
  int sync_count() const {
    const std::lock_guard lock(mutex_);
    return syncs_;
  }
  size_t open_files() const {
    const std::lock_guard lock(mutex_);
    return files_.size();
  }

  aio::FileId open(const std::string& path, bool create) override {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
    if (fd < 0) {
      throw IoError("opening failed", {path, -1, -1, -1, errno});
    }
    const std::lock_guard lock(mutex_);
    files_[next_] = {fd, path, Bytes(0)};
    return aio::FileId{next_++};
  }
  void allocate(aio::FileId file, Bytes size) override {
    const std::lock_guard lock(mutex_);
    File& target = files_.at(static_cast<uint32_t>(file));
    Bytes sum = size - target.size;
    for (const auto& [id, other] : files_) {
      sum += other.size;
    }
    const int error = sum > disk_size_ ? ENOSPC : ::posix_fallocate(target.fd, 0, size.count());
    if (error != 0) {
      throw IoError("allocating failed", {target.path, -1, -1, -1, error});
    }
    target.size = size;
  }
  void close(aio::FileId file) override {
    const std::lock_guard lock(mutex_);
    ::close(files_.at(static_cast<uint32_t>(file)).fd);
    files_.erase(static_cast<uint32_t>(file));
  }
  void sync(aio::FileId file) override {
    const std::lock_guard lock(mutex_);
    ++syncs_;
    if (::fdatasync(files_.at(static_cast<uint32_t>(file)).fd) != 0) {
      throw IoError("syncing failed", {"", -1, -1, -1, errno});
    }
  }
  void register_memory(std::span<std::byte> /*memory*/) override {}

  Completion submit(const aio::IoRequest& request) override {
    auto promise = std::make_shared<Promise>();
    worker_.post([this, request, promise] {
      try {
        transfer(request);
      } catch (...) {
        promise->set_failed(std::current_exception());
        return;
      }
      promise->set_done();
    });
    return promise->completion();
  }

  Bytes alignment() const override { return alignment_; }
  std::string description() const override { return "fake"; }
  aio::IoStatistics statistics() const override { return {}; }

 private:
  struct File {
    int fd = -1;
    std::string path;
    Bytes size;
  };

  void transfer(const aio::IoRequest& request) {
    File file;
    Fault fault = Fault::none;
    {
      std::unique_lock lock(mutex_);
      gate_changed_.wait(lock, [&] { return is_gate_open_; });
      file = files_.at(static_cast<uint32_t>(request.file));
      fault = hook_ ? hook_(request) : Fault::none;
    }
    const int64_t length = request.length.count();
    if (fault == Fault::fail || fault == Fault::cut_short) {
      const bool is_short = fault == Fault::cut_short;
      throw IoError(
          is_short ? "short transfer" : "transfer failed",
          {file.path, request.offset, length, is_short ? length / 2 : -1, is_short ? 0 : EIO});
    }
    const auto size = static_cast<size_t>(length);
    if (request.operation == aio::IoOperation::write && write_wrongly(file, request, fault)) {
      return;
    }
    const ssize_t done = request.operation == aio::IoOperation::read
                             ? ::pread(file.fd, request.data, size, request.offset)
                             : ::pwrite(file.fd, request.data, size, request.offset);
    if (done != length) {
      throw IoError("transfer failed", {file.path, request.offset, length, done, errno});
    }
    if (fault == Fault::corrupt && request.operation == aio::IoOperation::read) {
      request.data[size / 2] ^= std::byte{1};
    }
  }

  /// Whether the fault is one of a drive that lies; then it has been done.
  static bool write_wrongly(const File& file, const aio::IoRequest& request, Fault fault) {
    constexpr size_t kSector = 512;
    const auto size = static_cast<size_t>(request.length.count());
    switch (fault) {
      case Fault::lose:
        return true;
      case Fault::tear:
        return ::pwrite(file.fd, request.data, size - 3 * kSector, request.offset) > 0;
      case Fault::misdirect:
        return ::pwrite(file.fd, request.data, size, request.offset + 4096) > 0;
      default:
        return false;
    }
  }

  Bytes alignment_;
  mutable std::mutex mutex_;
  std::condition_variable gate_changed_;
  bool is_gate_open_ = true;
  Hook hook_;
  Bytes disk_size_{int64_t{1} << 40};
  std::map<uint32_t, File> files_;
  uint32_t next_ = 0;
  int syncs_ = 0;
  SerialWorker worker_;  // last: its tasks use the rest
};

}  // namespace headrace::tiers::test
