#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "device/gpu.h"

namespace headrace::device {

namespace cuda {

namespace {

constexpr const char* kLibraryVariable = "HEADRACE_CUDA_LIBRARY";

/// Beside the executable, unless the variable names another.
std::string library_path() {
  if (const char* const given = std::getenv(kLibraryVariable)) {
    return given;
  }
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  return failed ? kCudaLibrary : (self.parent_path() / kCudaLibrary).string();
}

/// Null, with the reason in `refusal`, where it cannot be had. Libraries stay loaded for the life
/// of the process: CUDA's do not survive being unloaded.
std::shared_ptr<CudaApi> open_api(std::string& refusal) {
  const std::string path = library_path();
  if (path.empty()) {
    refusal = fmt::format("{} is empty: no GPU is looked for", kLibraryVariable);
    return nullptr;
  }
  // A short word instead of a long load where there is nothing to find.
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE) == nullptr) {
    refusal = "this machine has no NVIDIA driver (libcuda.so.1)";
    return nullptr;
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    refusal = fmt::format(
        "the CUDA backend does not load ({}); it is built where nvcc is found and needs "
        "libcublasLt of the same CUDA release at run time",
        reason != nullptr ? reason : path);
    return nullptr;
  }
  auto* const entry = reinterpret_cast<CudaEntry*>(dlsym(library, kCudaEntryName));
  std::shared_ptr<CudaApi> api(entry != nullptr ? entry(kCudaApiVersion) : nullptr);
  if (api == nullptr) {
    refusal = fmt::format(
        "{} belongs to another version of Headrace (interface {} is needed); build both together",
        path, kCudaApiVersion);
  }
  return api;
}

std::string describe(const GpuFacts& facts) {
  const auto version = [](int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
  };
  return fmt::format("{} at {}, compute capability {}.{}, {}, CUDA {} with a driver for {}",
                     facts.name, facts.pci_address, facts.major, facts.minor,
                     format_bytes(Bytes(facts.memory)), version(facts.runtime_version),
                     version(facts.driver_version));
}

/// Ada is the first.
bool has_fp8(const GpuFacts& facts) {
  return facts.major * 10 + facts.minor >= 89;
}

/// Runs a kernel: the library may hold none for this GPU, which nothing before a launch tells.
void try_kernel(CudaDevice& device) {
  constexpr Elements kCount{64};
  const auto memory = device.allocate(2 * bytes_for(kCount, DType::f32));
  const auto stream = device.create_stream("hr-try");
  std::byte* const target = memory->data() + bytes_for(kCount, DType::f32).count();
  try {
    device.kernels().accumulate(*stream, memory->data(), DType::f32,
                                reinterpret_cast<float*>(target), kCount, true);
    stream->synchronize();
  } catch (const CudaError& error) {
    throw CudaError(fmt::format(
        "its kernels do not run; the CUDA backend may be built for other GPUs than compute "
        "capability {}.{} (HEADRACE_CUDA_ARCHITECTURES): {}",
        device.facts().major, device.facts().minor, error.what()));
  }
}

}  // namespace

GpuSearch find_gpu(const std::shared_ptr<CudaApi>& api) {
  GpuSearch result;
  int count = 0;
  const Status status = api->device_count(&count);
  if (!status.is_ok() || count == 0) {
    result.refusal = fmt::format(
        "the CUDA backend finds no GPU ({}); nvidia-smi shows what the "
        "driver sees",
        status.is_ok() ? "the driver lists none" : api->describe(status));
    return result;
  }
  try {
    const auto device = std::make_unique<CudaDevice>(api, 0);
    try_kernel(*device);
    GpuFound found;
    found.name = device->facts().name;
    found.pci_address = device->facts().pci_address;
    found.description = describe(device->facts());
    found.memory = Bytes(device->facts().memory);
    found.free_memory = device->free_memory();
    found.has_fp8 = has_fp8(device->facts());
    found.make_device = [api](const GpuOptions& options) {
      return std::make_unique<CudaDevice>(api, 0, options);
    };
    result.gpu = std::move(found);
  } catch (const Error& error) {
    result.refusal = fmt::format("a GPU is there but cannot be used: {}", error.what());
  }
  return result;
}

}  // namespace cuda

GpuSearch find_gpu() {
  GpuSearch result;
  const std::shared_ptr<cuda::CudaApi> api = cuda::open_api(result.refusal);
  return api == nullptr ? result : cuda::find_gpu(api);
}

}  // namespace headrace::device
