#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace headrace::device::cuda {

/// CUfileError_t: what a call of cuFile returned.
struct CuFileStatus {
  int code = 0;  ///< CUfileOpError; 0: success
  int cuda = 0;  ///< CUresult, where the code says that CUDA's driver failed
  bool is_ok() const { return code == 0; }
};

/// CUfileDrvProps_t.
struct CuFileProperties {
  unsigned int nvfs_major = 0;  ///< version of the kernel module nvidia-fs; 0.0: not used
  unsigned int nvfs_minor = 0;
  size_t poll_threshold = 0;
  size_t largest_direct_io = 0;
  unsigned int status_flags = 0;
  unsigned int control_flags = 0;
  unsigned int features = 0;
  unsigned int device_cache_kib = 0;
  unsigned int buffer_cache_kib = 0;
  unsigned int pinned_limit_kib = 0;  ///< of device memory: the cache and what is registered
  unsigned int batch_size = 0;
  unsigned int batch_timeout = 0;
  unsigned int later_fields[64] = {};  ///< room for what newer versions append
};

// Bits of control_flags: modes in which cuFile copies through host memory itself.
inline constexpr unsigned int kAllowsCompatibility = 1U << 1;  // CU_FILE_ALLOW_COMPAT_MODE
inline constexpr unsigned int kPosixMode = 1U << 2;            // CU_FILE_POSIX_IO_MODE
inline constexpr unsigned int kFallbackMode = 1U << 4;         // CU_FILE_FALLBACK_IO_MODE

// Codes of CUfileOpError that are told apart.
inline constexpr int kCuFileNoDriver = 5001;
inline constexpr int kCuFileNotSupported = 5008;
inline constexpr int kCuFileNoFunction = -1;  // the library is older than the call; not cuFile's

using CuFileHandle = void*;

/// The calls of cuFile that direct reads make, with their meaning in cufile.h of CUDA 13: libcufile
/// opened at run time, or the fake of the tests. Thread-safe as cuFile's.
class CuFileApi {
 public:
  virtual ~CuFileApi() = default;
  /// 1000 * major + 10 * minor; 0: unknown.
  virtual int version() = 0;
  /// From the next driver_open() on cuFile does not copy through host memory where it cannot read
  /// directly, but fails.
  virtual CuFileStatus forbid_compatibility() = 0;
  virtual CuFileStatus driver_open() = 0;
  virtual CuFileStatus driver_close() = 0;
  virtual CuFileStatus driver_properties(CuFileProperties* properties) = 0;
  virtual CuFileStatus set_pinned_limit(size_t kib) = 0;
  /// The descriptor is open with O_DIRECT and stays the caller's.
  virtual CuFileStatus handle_register(CuFileHandle* handle, int descriptor) = 0;
  virtual void handle_deregister(CuFileHandle handle) = 0;
  virtual CuFileStatus buffer_register(const void* base, size_t size) = 0;
  virtual CuFileStatus buffer_deregister(const void* base) = 0;
  /// Bytes read; below 0: -1 with errno, or a negative CUfileOpError. Blocks.
  virtual ssize_t read(CuFileHandle handle, void* base, size_t size, off_t file_offset,
                       off_t buffer_offset) = 0;
};

/// Opens cuFile; null with the reason in `refusal`.
using OpenCuFile = std::function<std::shared_ptr<CuFileApi>(std::string& refusal)>;

/// libcufile.so.0, wherever the loader finds it. It stays loaded for the life of the process.
std::shared_ptr<CuFileApi> open_cufile_library(std::string& refusal);

}  // namespace headrace::device::cuda
