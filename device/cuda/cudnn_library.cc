#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <type_traits>

#include "device/cuda/cudnn_api.h"

namespace headrace::device::cuda {

namespace {

constexpr const char* kLibrary = "libcudnn_graph.so.9";

class CudnnLibrary final : public CudnnApi {
 public:
  /// Looks all functions up; the name of one that is missing, or empty.
  std::string bind(void* library) {
    const char* missing = "";
    const auto find = [&](const char* name, auto*& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(  // NOLINT
          dlsym(library, name));
      if (function == nullptr) {
        missing = name;
      }
    };
    find("cudnnGetVersion", version_);
    find("cudnnCreate", create_);
    find("cudnnDestroy", destroy_);
    find("cudnnSetStream", set_stream_);
    find("cudnnBackendCreateDescriptor", create_descriptor_);
    find("cudnnBackendDestroyDescriptor", destroy_descriptor_);
    find("cudnnBackendSetAttribute", set_attribute_);
    find("cudnnBackendFinalize", finalize_);
    find("cudnnBackendGetAttribute", get_attribute_);
    find("cudnnBackendExecute", execute_);
    find("cudnnGetErrorString", error_string_);
    find("cudnnGetLastErrorString", last_error_);
    return missing;
  }

  size_t version() override { return version_(); }
  int create(CudnnHandle* handle) override { return create_(handle); }
  int destroy(CudnnHandle handle) override { return destroy_(handle); }
  int set_stream(CudnnHandle handle, StreamHandle stream) override {
    return set_stream_(handle, stream);
  }
  int create_descriptor(CudnnKind kind, CudnnDescriptor* descriptor) override {
    return create_descriptor_(kind, descriptor);
  }
  int destroy_descriptor(CudnnDescriptor descriptor) override {
    return destroy_descriptor_(descriptor);
  }
  int set_attribute(CudnnDescriptor descriptor, CudnnAttribute attribute, CudnnElement element,
                    int64_t count, const void* elements) override {
    return set_attribute_(descriptor, attribute, element, count, elements);
  }
  int finalize(CudnnDescriptor descriptor) override { return finalize_(descriptor); }
  int get_attribute(CudnnDescriptor descriptor, CudnnAttribute attribute, CudnnElement element,
                    int64_t room, int64_t* count, void* elements) override {
    return get_attribute_(descriptor, attribute, element, room, count, elements);
  }
  int execute(CudnnHandle handle, CudnnDescriptor plan, CudnnDescriptor pack) override {
    return execute_(handle, plan, pack);
  }
  std::string describe(int status) override {
    std::array<char, 1024> why{};
    last_error_(why.data(), why.size() - 1);
    return why.front() == '\0' ? std::string(error_string_(status))
                               : fmt::format("{} ({})", error_string_(status), why.data());
  }

 private:
  size_t (*version_)() = nullptr;
  int (*create_)(CudnnHandle*) = nullptr;
  int (*destroy_)(CudnnHandle) = nullptr;
  int (*set_stream_)(CudnnHandle, StreamHandle) = nullptr;
  int (*create_descriptor_)(CudnnKind, CudnnDescriptor*) = nullptr;
  int (*destroy_descriptor_)(CudnnDescriptor) = nullptr;
  int (*set_attribute_)(CudnnDescriptor, CudnnAttribute, CudnnElement, int64_t,
                        const void*) = nullptr;
  int (*finalize_)(CudnnDescriptor) = nullptr;
  int (*get_attribute_)(CudnnDescriptor, CudnnAttribute, CudnnElement, int64_t, int64_t*,
                        void*) = nullptr;
  int (*execute_)(CudnnHandle, CudnnDescriptor, CudnnDescriptor) = nullptr;
  const char* (*error_string_)(int) = nullptr;
  void (*last_error_)(char*, size_t) = nullptr;
};

}  // namespace

std::string describe_cudnn_version(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string cudnn_version_refusal(size_t version) {
  return version >= kOldestCudnn
             ? ""
             : fmt::format("cuDNN {} is older than {}", describe_cudnn_version(version),
                           describe_cudnn_version(kOldestCudnn));
}

std::shared_ptr<CudnnApi> open_cudnn_library(std::string& refusal) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    refusal = fmt::format(
        "cuDNN 9 is not there ({}); its folder must be in LD_LIBRARY_PATH, or known to ldconfig",
        reason != nullptr ? reason : kLibrary);
    return nullptr;
  }
  auto cudnn = std::make_shared<CudnnLibrary>();
  if (const std::string missing = cudnn->bind(library); !missing.empty()) {
    refusal = fmt::format("{} has no {}: it is of an older cuDNN", kLibrary, missing);
    return nullptr;
  }
  return cudnn;
}

}  // namespace headrace::device::cuda
