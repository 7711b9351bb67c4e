#include "device/cuda/cufile_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/serial_worker.h"

namespace headrace::device::cuda {

namespace {

/// A call of cuFile blocks its thread, so several keep a drive busy. Not tuned on a GPU yet.
constexpr size_t kThreads = 8;
constexpr Bytes kPartMax{int64_t{4} << 20};
constexpr int kAttempts = 3;
constexpr int kCuFileErrors = 5000;  // errors of cuFile are above, those of the system below

/// What a code of cuFile means for a user; the others are numbers.
std::string describe(CuFileStatus status) {
  static constexpr std::pair<int, const char*> kMeanings[] = {
      {kCuFileNoDriver, "the kernel module nvidia-fs is not loaded (modprobe nvidia-fs)"},
      {5004, "nvidia-fs and libcufile are of different versions"},
      {5007, "this platform has no GPUDirect Storage"},
      {kCuFileNotSupported, "this file system or drive has no GPUDirect Storage"},
      {5009, "this GPU has no GPUDirect Storage"},
      {5011, "the CUDA driver failed"},
      {5016, "more memory than the largest that may be pinned"},
      {5020, "the file is not open for direct I/O"},
      {5025, "permission denied"},
      {5026, "something else in this process has opened cuFile"},
      {5033, "nvidia-fs cannot be set up"},
      {5034, "switched off for this file in cufile.json"},
      {5036, "the GPU's memory cannot be pinned: its BAR1 may be too small (nvidia-smi -q)"},
  };
  for (const auto& [code, meaning] : kMeanings) {
    if (code == status.code) {
      return status.cuda != 0
                 ? fmt::format("{} (error {}, CUresult {})", meaning, code, status.cuda)
                 : fmt::format("{} (error {})", meaning, code);
    }
  }
  return fmt::format("error {}", status.code);
}

/// What keeps cuFile from being used; becomes the refusal.
class Refused : public Error {
 public:
  explicit Refused(const std::string& text) : Error(ErrorKind::io, text) {}
};

void require(CuFileStatus status, const char* call) {
  if (!status.is_ok()) {
    throw Refused(fmt::format("{}: {}", call, describe(status)));
  }
}

void note_failure(CuFileStatus status, const char* call) noexcept {
  if (status.is_ok()) {
    return;
  }
  try {
    log_warning("{} failed: {}", call, describe(status));
  } catch (const std::exception&) {
    return;  // a message that cannot be formatted is lost
  }
}

/// cuFile's driver, open with its ways through host memory off.
class OpenDriver {
 public:
  explicit OpenDriver(CuFileApi& api) : api_(api) {
    const CuFileStatus forbidden = api.forbid_compatibility();
    if (!forbidden.is_ok() && forbidden.code != kCuFileNoFunction) {
      require(forbidden, "cuFileSetParameterBool(ALLOW_COMPAT_MODE)");
    }
    require(api.driver_open(), "cuFileDriverOpen");
    try {
      require(api.driver_properties(&properties_), "cuFileDriverGetProperties");
      refuse_detours();
    } catch (...) {
      note_failure(api.driver_close(), "cuFileDriverClose");
      throw;
    }
  }
  OpenDriver(const OpenDriver&) = delete;
  OpenDriver& operator=(const OpenDriver&) = delete;
  ~OpenDriver() { note_failure(api_.driver_close(), "cuFileDriverClose"); }

  const CuFileProperties& properties() const { return properties_; }

 private:
  void refuse_detours() const {
    static constexpr std::pair<unsigned int, const char*> kDetours[] = {
        {kAllowsCompatibility, "properties.allow_compat_mode"},
        {kPosixMode, "properties.posix_io_mode"},
        {kFallbackMode, "properties.gds_fallback_io"},
    };
    for (const auto& [bit, name] : kDetours) {
      if ((properties_.control_flags & bit) != 0) {
        throw Refused(
            fmt::format("cuFile may copy through host memory itself, which would not be told "
                        "apart; set {} to false in its cufile.json (CUFILE_ENV_PATH_JSON)",
                        name));
      }
    }
  }

  CuFileApi& api_;
  CuFileProperties properties_;
};

class RegisteredBuffer {
 public:
  RegisteredBuffer(CuFileApi& api, const CuFileProperties& properties, std::span<std::byte> memory)
      : api_(api), base_(memory.data()) {
    // The limit holds for cuFile's own cache too.
    const size_t wanted = memory.size() / 1024 + properties.device_cache_kib + 1;
    if (wanted > properties.pinned_limit_kib) {
      require(api.set_pinned_limit(wanted), "cuFileDriverSetMaxPinnedMemSize");
    }
    const CuFileStatus status = api.buffer_register(memory.data(), memory.size());
    if (!status.is_ok()) {
      throw Refused(fmt::format("cuFileBufRegister of {} of device memory: {}",
                                format_bytes(Bytes(static_cast<int64_t>(memory.size()))),
                                describe(status)));
    }
  }
  RegisteredBuffer(const RegisteredBuffer&) = delete;
  RegisteredBuffer& operator=(const RegisteredBuffer&) = delete;
  ~RegisteredBuffer() { note_failure(api_.buffer_deregister(base_), "cuFileBufDeregister"); }

 private:
  CuFileApi& api_;
  std::byte* base_;
};

/// One file that is open for direct reads.
class OpenFile {
 public:
  OpenFile(CuFileApi& api, const std::string& path)
      : api_(api), descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {
    IoError::Where where;
    where.path = path;
    if (descriptor_ < 0) {
      where.error_number = errno;
      throw IoError("a file cannot be opened for direct reads", where);
    }
    const CuFileStatus status = api.handle_register(&handle_, descriptor_);
    if (!status.is_ok()) {
      ::close(descriptor_);
      throw IoError("cuFileHandleRegister: " + describe(status), where);
    }
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    api_.handle_deregister(handle_);
    ::close(descriptor_);
  }

  CuFileHandle handle() const { return handle_; }

 private:
  CuFileApi& api_;
  int descriptor_;
  CuFileHandle handle_ = nullptr;
};

class CuFileReader final : public DirectReader {
 public:
  CuFileReader(const Gpu& gpu, std::shared_ptr<CuFileApi> api, std::span<std::byte> memory)
      : gpu_(gpu),
        api_(std::move(api)),
        memory_(memory),
        driver_(*api_),
        buffer_(*api_, driver_.properties(), memory) {
    for (size_t i = 0; i < kThreads; ++i) {
      workers_.push_back(std::make_unique<SerialWorker>(fmt::format("hr-direct-{}", i)));
    }
  }

  Completion read(const std::string& path, int64_t offset, std::byte* target,
                  Bytes length) override {
    const int64_t start = target - memory_.data();
    const int64_t unit = kDirectAlignment.count();
    HR_CHECK(offset % unit == 0 && start % unit == 0 && length.count() % unit == 0,
             "direct read of {} bytes at {} to {} is not aligned", length, offset, start);
    HR_CHECK(start >= 0 && start + length.count() <= static_cast<int64_t>(memory_.size()),
             "direct read of {} bytes to {} of {}", length, start, memory_.size());
    std::vector<Completion> ends;
    try {
      const CuFileHandle handle = file(path).handle();
      for (int64_t at = 0; at < length.count(); at += kPartMax.count()) {
        const int64_t size = std::min(kPartMax.count(), length.count() - at);
        ends.push_back(post({path, handle, offset + at, start + at, size}));
      }
    } catch (...) {
      ends.push_back(Completion::failed(std::current_exception()));
    }
    return when_all(ends);
  }

  void close(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    files_.erase(path);
  }

  std::string description() const override {
    const CuFileProperties& properties = driver_.properties();
    const int version = api_->version();
    return fmt::format(
        "cuFile {}.{}, {}", version / 1000, version % 1000 / 10,
        properties.nvfs_major > 0
            ? fmt::format("nvidia-fs {}.{}", properties.nvfs_major, properties.nvfs_minor)
            : std::string("without nvidia-fs"));
  }

 private:
  struct Part {
    std::string path;
    CuFileHandle handle = nullptr;
    int64_t file_offset = 0;
    int64_t buffer_offset = 0;
    int64_t size = 0;
  };

  const OpenFile& file(const std::string& path) {
    const std::lock_guard lock(mutex_);
    auto open = files_.find(path);
    if (open == files_.end()) {
      gpu_.enter();
      open = files_.emplace(path, std::make_unique<OpenFile>(*api_, path)).first;
    }
    return *open->second;
  }

  Completion post(Part part) {
    auto promise = std::make_shared<Promise>();
    Completion end = promise->completion();
    workers_[next_++ % kThreads]->post([this, promise, part = std::move(part)] {
      try {
        gpu_.enter();
        read_part(part);
      } catch (...) {
        promise->set_failed(std::current_exception());
        return;
      }
      promise->set_done();
    });
    return end;
  }

  void read_part(const Part& part) {
    int64_t done = 0;
    for (int attempt = 1; done < part.size;) {
      const ssize_t got =
          api_->read(part.handle, memory_.data(), static_cast<size_t>(part.size - done),
                     part.file_offset + done, part.buffer_offset + done);
      const int error = got == -1 ? errno : 0;
      if ((error == EINTR || error == EAGAIN) && attempt++ < kAttempts) {
        continue;
      }
      if (got < 0) {
        fail(part, done, failure_of(got), error);
      }
      done += got;
      // From the middle of a block cuFile could not go on directly.
      if (done < part.size && (got == 0 || done % kDirectAlignment.count() != 0)) {
        fail(part, done, "ended early", 0);
      }
    }
  }

  static std::string failure_of(ssize_t returned) {
    return returned < -kCuFileErrors ? "failed: " + describe({static_cast<int>(-returned), 0})
                                     : fmt::format("failed (cuFileRead returned {})", returned);
  }

  [[noreturn]] static void fail(const Part& part, int64_t done, const std::string& how, int error) {
    IoError::Where where;
    where.path = part.path;
    where.offset = part.file_offset;
    where.expected_bytes = part.size;
    where.actual_bytes = done;
    where.error_number = error;
    throw IoError(fmt::format("a direct read to the GPU {}; headrace.gpudirect off reads through "
                              "host memory instead",
                              how),
                  where);
  }

  const Gpu& gpu_;
  std::shared_ptr<CuFileApi> api_;
  std::span<std::byte> memory_;
  OpenDriver driver_;
  RegisteredBuffer buffer_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<OpenFile>> files_;
  std::atomic<size_t> next_ = 0;
  std::vector<std::unique_ptr<SerialWorker>> workers_;  // first to go: they use all the rest
};

}  // namespace

DirectSearch open_cufile_reader(const Gpu& gpu, std::shared_ptr<CuFileApi> api,
                                std::span<std::byte> memory) {
  DirectSearch search;
  try {
    gpu.enter();
    search.reader = std::make_unique<CuFileReader>(gpu, std::move(api), memory);
  } catch (const Error& error) {
    search.refusal = error.what();
  }
  return search;
}

}  // namespace headrace::device::cuda
