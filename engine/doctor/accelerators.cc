#include "engine/doctor/accelerators.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/system_file.h"
#include "device/cuda/cufile_api.h"
#include "device/gpu.h"
#include "tiers/host_memory.h"
#include "tiers/topology.h"

namespace headrace::engine {

namespace {

namespace fs = std::filesystem;

struct CloseLibrary {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

/// Empty where the library cannot be loaded; `error` says why.
Library load(const char* name, std::string& error) {
  Library library(::dlopen(name, RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    const char* const text = ::dlerror();
    error = text != nullptr ? text : "unknown";
  }
  return library;
}

template <class Function>
Function* function_of(const Library& library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library.get(), name));
}

/// The folders in a folder, by name; none where it cannot be read.
std::vector<fs::path> entries_of(const std::string& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// The word of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 ..." that
/// looks like a version.
std::string version_in(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  while (words >> word) {
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos) {
      return word;
    }
  }
  return "";
}

// The few functions of the CUDA driver interface that tell what is there; results are CUresult.
using CuInit = int(unsigned);
using CuDriverGetVersion = int(int*);
using CuDeviceGetCount = int(int*);
using CuDeviceGet = int(int*, int);
using CuDeviceGetName = int(char*, int, int);
using CuDeviceTotalMem = int(size_t*, int);
using CuDeviceGetPciBusId = int(char*, int, int);

int numa_node_of(const std::string& bus_id, const std::string& root) {
  return tiers::pci_numa_node(bus_id, root).value_or(-1);
}

/// Fills in what the driver's library says; the text is why it says nothing.
std::string ask_libcuda(const Library& cuda, GpuFacts& facts) {
  auto* const init = function_of<CuInit>(cuda, "cuInit");
  auto* const version = function_of<CuDriverGetVersion>(cuda, "cuDriverGetVersion");
  auto* const count_of = function_of<CuDeviceGetCount>(cuda, "cuDeviceGetCount");
  auto* const device_of = function_of<CuDeviceGet>(cuda, "cuDeviceGet");
  auto* const name_of = function_of<CuDeviceGetName>(cuda, "cuDeviceGetName");
  auto* const memory_of = function_of<CuDeviceTotalMem>(cuda, "cuDeviceTotalMem_v2");
  auto* const bus_id_of = function_of<CuDeviceGetPciBusId>(cuda, "cuDeviceGetPCIBusId");
  if (init == nullptr || version == nullptr || count_of == nullptr || device_of == nullptr ||
      name_of == nullptr || memory_of == nullptr || bus_id_of == nullptr) {
    return "libcuda.so.1 lacks a function that every driver has";
  }
  if (const int result = version(&facts.cuda_version); result != 0) {
    return fmt::format("cuDriverGetVersion failed with CUresult {}", result);
  }
  int count = 0;
  if (const int result = init(0); result != 0) {
    return fmt::format("cuInit failed with CUresult {}", result);
  }
  if (const int result = count_of(&count); result != 0) {
    return fmt::format("cuDeviceGetCount failed with CUresult {}", result);
  }
  facts.gpus.clear();  // the library knows more than the kernel's files
  for (int i = 0; i < count; ++i) {
    int device = 0;
    std::array<char, 128> name{};
    std::array<char, 32> bus_id{};
    size_t memory = 0;
    if (device_of(&device, i) != 0 || name_of(name.data(), name.size() - 1, device) != 0 ||
        memory_of(&memory, device) != 0 ||
        bus_id_of(bus_id.data(), bus_id.size() - 1, device) != 0) {
      return fmt::format("GPU {} does not answer", i);
    }
    facts.gpus.push_back(
        {name.data(), Bytes(static_cast<int64_t>(memory)), numa_node_of(bus_id.data(), "")});
  }
  return "";
}

}  // namespace

GpuFacts read_gpu_facts(const std::string& root) {
  constexpr const char* kNvidia = "0x10de";
  GpuFacts facts;
  for (const fs::path& device : entries_of(root + "/sys/bus/pci/devices")) {
    // Class 0x03....: a display controller.
    if (first_line_of(device / "vendor") == kNvidia &&
        first_line_of(device / "class").starts_with("0x03")) {
      ++facts.on_bus;
    }
  }
  facts.driver = version_in(first_line_of(root + "/proc/driver/nvidia/version"));
  for (const fs::path& gpu : entries_of(root + "/proc/driver/nvidia/gpus")) {
    const auto model = field_of(gpu / "information", "Model");
    facts.gpus.push_back(
        {model.value_or("unknown model"), Bytes(0), numa_node_of(gpu.filename().string(), root)});
  }
  return facts;
}

GpuFacts detect_gpus(const device::GpuSearch& search) {
  GpuFacts facts = read_gpu_facts();
  if (const Library cuda = load("libcuda.so.1", facts.library_error)) {
    facts.library_error = ask_libcuda(cuda, facts);
  }
  facts.backend = search.gpu ? search.gpu->description : "";
  facts.backend_refusal = search.refusal;
  return facts;
}

DirectReadFacts try_direct_reads(const device::GpuSearch& search, const std::string& folder) {
  const Bytes size = kMiB * 16;
  DirectReadFacts facts;
  facts.folder = folder;
  facts.has_gpu = search.gpu.has_value();
  facts.has_cufile = device::cuda::open_cufile_library(facts.refusal) != nullptr;
  if (!facts.has_gpu) {
    facts.refusal = facts.has_cufile ? "no GPU is used" : facts.refusal;
    return facts;
  }
  try {
    const auto device = search.gpu->make_device({});
    const auto memory = device->allocate(size);
    tiers::HostMemory host(size, false, std::nullopt);
    const TrialMemory trial{{memory->data(), static_cast<size_t>(size.count())}, host.bytes()};
    device::DirectSearch found = device->open_direct_reader(trial.device);
    facts.refusal = found.refusal;
    if (found.reader != nullptr) {
      facts.description = found.reader->description();
      const auto io = aio::IoEngine::create({});
      facts.rates = engine::try_direct_reads(*device, *found.reader, *io, folder, trial);
    }
  } catch (const Error& error) {
    facts.refusal = error.what();
  }
  return facts;
}

CudnnFacts detect_cudnn(const device::cuda::OpenCudnn& open) {
  CudnnFacts facts;
  const auto cudnn = open(facts.refusal);
  if (cudnn != nullptr) {
    facts.version = device::cuda::describe_cudnn_version(cudnn->version());
    facts.refusal = device::cuda::cudnn_version_refusal(cudnn->version());
  }
  return facts;
}

MpiFacts detect_mpi() {
  using GetLibraryVersion = int(char*, int*);
  MpiFacts facts;
  // May be called before MPI_Init.
  const Library mpi = load("libmpi.so.40", facts.error);
  auto* const version =
      mpi != nullptr ? function_of<GetLibraryVersion>(mpi, "MPI_Get_library_version") : nullptr;
  if (version != nullptr) {
    std::array<char, 8192> text{};  // MPI_MAX_LIBRARY_VERSION_STRING is far less
    int length = 0;
    if (version(text.data(), &length) == 0) {
      facts.version = text.data();
    }
  }
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  std::string folder;
  while (std::getline(folders, folder, ':')) {
    std::error_code error;
    facts.has_mpirun = facts.has_mpirun || fs::exists(fs::path(folder) / "mpirun", error);
  }
  return facts;
}

}  // namespace headrace::engine
