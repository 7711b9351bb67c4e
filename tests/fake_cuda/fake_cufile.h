#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "device/cuda/cufile_api.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace headrace::device::testing {

/// A cuFile that reads real files into the fake GPU's memory. What cuFile refuses is refused: calls
/// without a driver, ranges that are not registered, what is not aligned. Where it can copy through
/// host memory in silence, as cuFile does in compatibility mode, it does. Thread-safe.
class FakeCuFile : public cuda::CuFileApi {
 public:
  struct Options {
    bool allows_compatibility = true;  ///< in cufile.json, as it comes
    bool can_forbid = true;            ///< the library has the call
    bool posix_mode = false;           ///< in cufile.json
    bool has_driver = true;            ///< nvidia-fs is loaded
    bool supports_files = true;        ///< the file system has the direct path
    bool can_pin = true;               ///< BAR1 holds the memory
    unsigned int pinned_limit_kib = 1 << 20;
  };

  explicit FakeCuFile(std::shared_ptr<FakeCuda> gpu);
  FakeCuFile(std::shared_ptr<FakeCuda> gpu, const Options& options);

  /// The read after `skipped` further ones returns this, once, with errno.
  void fail_read(int64_t skipped, ssize_t result, int error_number = 0);
  /// No read brings more than `bytes`.
  void shorten_reads(size_t bytes) { most_ = bytes; }
  /// Every read brings one wrong bit.
  void damage_reads() { damages_ = true; }
  /// Every read takes this much longer.
  void slow_reads(std::chrono::milliseconds delay) { delay_ = delay; }

  int64_t reads() const;
  int64_t bytes_read() const;
  /// Drivers, files and buffers that are not given back.
  int64_t live_objects() const;

  int version() override { return 1140; }
  cuda::CuFileStatus forbid_compatibility() override;
  cuda::CuFileStatus driver_open() override;
  cuda::CuFileStatus driver_close() override;
  cuda::CuFileStatus driver_properties(cuda::CuFileProperties* properties) override;
  cuda::CuFileStatus set_pinned_limit(size_t kib) override;
  cuda::CuFileStatus handle_register(cuda::CuFileHandle* handle, int descriptor) override;
  void handle_deregister(cuda::CuFileHandle handle) override;
  cuda::CuFileStatus buffer_register(const void* base, size_t size) override;
  cuda::CuFileStatus buffer_deregister(const void* base) override;
  ssize_t read(cuda::CuFileHandle handle, void* base, size_t size, off_t file_offset,
               off_t buffer_offset) override;

 private:
  struct Failure {
    int64_t skipped = 0;
    ssize_t result = 0;
    int error_number = 0;
  };

  std::shared_ptr<FakeCuda> gpu_;
  Options options_;
  size_t most_ = SIZE_MAX;
  bool damages_ = false;
  std::chrono::milliseconds delay_{0};
  mutable std::mutex mutex_;
  int open_ = 0;                                              ///< drivers
  std::map<cuda::CuFileHandle, std::unique_ptr<int>> files_;  ///< descriptors
  std::map<const void*, size_t> buffers_;
  std::optional<Failure> failure_;
  int64_t reads_ = 0;
  int64_t bytes_read_ = 0;
};

}  // namespace headrace::device::testing
