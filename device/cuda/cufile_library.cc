#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "device/cuda/cufile_api.h"

namespace headrace::device::cuda {

namespace {

constexpr const char* kLibrary = "libcufile.so.0";

// As in cufile.h.
constexpr int kHandleOfDescriptor = 1;        // CU_FILE_HANDLE_TYPE_OPAQUE_FD
constexpr int kParameterAllowCompatible = 1;  // CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE
constexpr int kParameterForceCompatible = 2;  // CUFILE_PARAM_FORCE_COMPAT_MODE

/// CUfileDescr_t.
struct FileDescription {
  int type = kHandleOfDescriptor;
  union {
    int descriptor;
    void* other;
  } handle{};
  const void* file_system = nullptr;
};

static_assert(std::is_trivially_copyable_v<CuFileStatus> && sizeof(CuFileStatus) == 8);
static_assert(sizeof(FileDescription) == 24);
static_assert(offsetof(CuFileProperties, control_flags) == 28);
static_assert(offsetof(CuFileProperties, pinned_limit_kib) == 44);

class CuFileLibrary final : public CuFileApi {
 public:
  /// Looks all functions up; the name of one that is missing, or empty.
  std::string bind(void* library) {
    const char* missing = "";
    const auto find = [&](const char* name, auto*& function, bool is_needed = true) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(  // NOLINT
          dlsym(library, name));
      if (function == nullptr && is_needed) {
        missing = name;
      }
    };
    find("cuFileDriverOpen", driver_open_);
    find("cuFileDriverClose_v2", driver_close_, false);
    if (driver_close_ == nullptr) {
      find("cuFileDriverClose", driver_close_);
    }
    find("cuFileDriverGetProperties", properties_);
    find("cuFileDriverSetMaxPinnedMemSize", set_pinned_);
    find("cuFileHandleRegister", handle_register_);
    find("cuFileHandleDeregister", handle_deregister_);
    find("cuFileBufRegister", buffer_register_);
    find("cuFileBufDeregister", buffer_deregister_);
    find("cuFileRead", read_);
    find("cuFileGetVersion", version_, false);
    find("cuFileSetParameterBool", set_parameter_, false);
    return missing;
  }

  int version() override {
    int number = 0;
    return version_ != nullptr && version_(&number).is_ok() ? number : 0;
  }
  CuFileStatus forbid_compatibility() override {
    if (set_parameter_ == nullptr) {
      return {kCuFileNoFunction, 0};
    }
    const CuFileStatus status = set_parameter_(kParameterForceCompatible, false);
    return status.is_ok() ? set_parameter_(kParameterAllowCompatible, false) : status;
  }
  CuFileStatus driver_open() override { return driver_open_(); }
  CuFileStatus driver_close() override { return driver_close_(); }
  CuFileStatus driver_properties(CuFileProperties* properties) override {
    return properties_(properties);
  }
  CuFileStatus set_pinned_limit(size_t kib) override { return set_pinned_(kib); }
  CuFileStatus handle_register(CuFileHandle* handle, int descriptor) override {
    FileDescription description;
    description.handle.descriptor = descriptor;
    return handle_register_(handle, &description);
  }
  void handle_deregister(CuFileHandle handle) override { handle_deregister_(handle); }
  CuFileStatus buffer_register(const void* base, size_t size) override {
    return buffer_register_(base, size, 0);
  }
  CuFileStatus buffer_deregister(const void* base) override { return buffer_deregister_(base); }
  ssize_t read(CuFileHandle handle, void* base, size_t size, off_t file_offset,
               off_t buffer_offset) override {
    return read_(handle, base, size, file_offset, buffer_offset);
  }

 private:
  CuFileStatus (*driver_open_)() = nullptr;
  CuFileStatus (*driver_close_)() = nullptr;
  CuFileStatus (*properties_)(CuFileProperties*) = nullptr;
  CuFileStatus (*set_pinned_)(size_t) = nullptr;
  CuFileStatus (*handle_register_)(CuFileHandle*, FileDescription*) = nullptr;
  void (*handle_deregister_)(CuFileHandle) = nullptr;
  CuFileStatus (*buffer_register_)(const void*, size_t, int) = nullptr;
  CuFileStatus (*buffer_deregister_)(const void*) = nullptr;
  ssize_t (*read_)(CuFileHandle, void*, size_t, off_t, off_t) = nullptr;
  CuFileStatus (*version_)(int*) = nullptr;
  CuFileStatus (*set_parameter_)(int, bool) = nullptr;
};

}  // namespace

std::shared_ptr<CuFileApi> open_cufile_library(std::string& refusal) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    refusal = fmt::format("cuFile is not there ({}); it comes with CUDA (package libcufile)",
                          reason != nullptr ? reason : kLibrary);
    return nullptr;
  }
  auto cufile = std::make_shared<CuFileLibrary>();
  if (const std::string missing = cufile->bind(library); !missing.empty()) {
    refusal = fmt::format("{} has no {}: it is of an older CUDA", kLibrary, missing);
    return nullptr;
  }
  return cufile;
}

}  // namespace headrace::device::cuda
