#include "tests/fake_cuda/fake_cufile.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::device::testing {

using cuda::CuFileHandle;
using cuda::CuFileStatus;

namespace {

constexpr size_t kUnit = 4096;
constexpr unsigned int kCacheKib = 131072;

constexpr CuFileStatus kInvalidPointer{5012};
constexpr CuFileStatus kBeyondPinned{5016};
constexpr int kInvalidValue = 5022;
constexpr int kNotRegistered = 5024;
constexpr CuFileStatus kAlreadyOpen{5026};
constexpr int kNoHandle = 5027;
constexpr CuFileStatus kPinningFailed{5036};

/// The first address from here on that direct I/O takes.
std::byte* align_up(std::byte* address) {
  return address + (kUnit - reinterpret_cast<uintptr_t>(address) % kUnit) % kUnit;
}

}  // namespace

FakeCuFile::FakeCuFile(std::shared_ptr<FakeCuda> gpu) : FakeCuFile(std::move(gpu), Options()) {}
FakeCuFile::FakeCuFile(std::shared_ptr<FakeCuda> gpu, const Options& options)
    : gpu_(std::move(gpu)), options_(options) {}

void FakeCuFile::fail_read(int64_t skipped, ssize_t result, int error_number) {
  const std::lock_guard lock(mutex_);
  failure_ = {skipped, result, error_number};
}

int64_t FakeCuFile::reads() const {
  const std::lock_guard lock(mutex_);
  return reads_;
}

int64_t FakeCuFile::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

int64_t FakeCuFile::live_objects() const {
  const std::lock_guard lock(mutex_);
  return open_ + static_cast<int64_t>(files_.size() + buffers_.size());
}

CuFileStatus FakeCuFile::forbid_compatibility() {
  if (!options_.can_forbid) {
    return {cuda::kCuFileNoFunction};
  }
  options_.allows_compatibility = false;
  return {};
}

CuFileStatus FakeCuFile::driver_open() {
  const std::lock_guard lock(mutex_);
  if (open_ > 0) {
    return kAlreadyOpen;
  }
  if (!options_.has_driver && !options_.allows_compatibility) {
    return {cuda::kCuFileNoDriver};
  }
  ++open_;
  return {};
}

CuFileStatus FakeCuFile::driver_close() {
  const std::lock_guard lock(mutex_);
  --open_;
  return {};
}

CuFileStatus FakeCuFile::driver_properties(cuda::CuFileProperties* properties) {
  *properties = {};
  properties->nvfs_major = options_.has_driver ? 2 : 0;
  properties->nvfs_minor = options_.has_driver ? 22 : 0;
  properties->control_flags = (options_.allows_compatibility ? cuda::kAllowsCompatibility : 0) |
                              (options_.posix_mode ? cuda::kPosixMode : 0);
  properties->device_cache_kib = kCacheKib;
  properties->pinned_limit_kib = options_.pinned_limit_kib;
  return {};
}

CuFileStatus FakeCuFile::set_pinned_limit(size_t kib) {
  options_.pinned_limit_kib = static_cast<unsigned int>(kib);
  return {};
}

CuFileStatus FakeCuFile::handle_register(CuFileHandle* handle, int descriptor) {
  if (!options_.supports_files && !options_.allows_compatibility) {
    return {cuda::kCuFileNotSupported};
  }
  auto file = std::make_unique<int>(descriptor);
  *handle = file.get();
  const std::lock_guard lock(mutex_);
  files_.emplace(*handle, std::move(file));
  return {};
}

void FakeCuFile::handle_deregister(CuFileHandle handle) {
  const std::lock_guard lock(mutex_);
  files_.erase(handle);
}

CuFileStatus FakeCuFile::buffer_register(const void* base, size_t size) {
  if (size / 1024 + kCacheKib > options_.pinned_limit_kib) {
    return kBeyondPinned;
  }
  if (!options_.can_pin) {
    return kPinningFailed;
  }
  const std::lock_guard lock(mutex_);
  buffers_.emplace(base, size);
  return {};
}

CuFileStatus FakeCuFile::buffer_deregister(const void* base) {
  const std::lock_guard lock(mutex_);
  return buffers_.erase(base) == 1 ? CuFileStatus{} : kInvalidPointer;
}

ssize_t FakeCuFile::read(CuFileHandle handle, void* base, size_t size, off_t file_offset,
                         off_t buffer_offset) {
  int descriptor = -1;
  {
    const std::lock_guard lock(mutex_);
    ++reads_;
    if (failure_ && failure_->skipped-- == 0) {
      const Failure failure = *std::exchange(failure_, std::nullopt);
      errno = failure.error_number;
      return failure.result;
    }
    const auto file = files_.find(handle);
    const auto buffer = buffers_.find(base);
    if (file == files_.end() || buffer == buffers_.end()) {
      return file == files_.end() ? -kNoHandle : -kNotRegistered;
    }
    const auto first = static_cast<size_t>(buffer_offset);
    const bool is_aligned =
        (size | static_cast<size_t>(file_offset) | first) % kUnit == 0 && buffer_offset >= 0;
    if (!is_aligned || first > buffer->second || size > buffer->second - first) {
      return -kInvalidValue;
    }
    descriptor = *file->second;
  }
  std::this_thread::sleep_for(delay_);
  std::vector<std::byte> block(size + kUnit);
  std::byte* const bytes = align_up(block.data());
  const size_t wanted = std::min(size, most_);
  // The descriptor is open for direct I/O: whole units only.
  const ssize_t got = ::pread(descriptor, bytes, size, file_offset);
  if (got < 0) {
    return -1;
  }
  const size_t brought = std::min(static_cast<size_t>(got), wanted);
  if (damages_ && brought > 0) {
    bytes[brought / 2] ^= std::byte{1};
  }
  if (!gpu_->write_as_peer(static_cast<std::byte*>(base) + buffer_offset, bytes, brought)) {
    return -kInvalidValue;
  }
  const std::lock_guard lock(mutex_);
  bytes_read_ += static_cast<int64_t>(brought);
  return static_cast<ssize_t>(brought);
}

}  // namespace headrace::device::testing
