#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cufile_reader.h"

namespace headrace::device::cuda {

namespace {

constexpr Bytes kPage{4096};

Gpu make_gpu(CudaApi& api, int ordinal) {
  Gpu gpu{api, ordinal, {}};
  gpu.check(api.device_facts(ordinal, &gpu.facts),
            [&] { return fmt::format("cudaGetDeviceProperties of GPU {}", ordinal); });
  gpu.enter();
  return gpu;
}

Bytes free_memory_of(const Gpu& gpu) {
  gpu.enter();
  size_t available = 0;
  size_t total = 0;
  gpu.check(gpu.api.memory_info(&available, &total), [] { return std::string("cudaMemGetInfo"); });
  return Bytes(static_cast<int64_t>(available));
}

/// An allocation of the GPU; its first page boundary is what is handed out.
class CudaMemory : public Memory {
 public:
  CudaMemory(const Gpu& gpu, AddressRanges& ranges, Bytes size)
      : gpu_(gpu), ranges_(ranges), size_(size) {
    HR_CHECK(size.count() >= 0, "allocation of {} bytes", size);
    const Bytes mapped = align_up(std::max(size, Bytes(1)), kPage) + kPage;
    const Bytes available = free_memory_of(gpu);
    const Status status = mapped > available
                              ? Status{Status::Library::runtime, kOutOfMemory}
                              : gpu.api.allocate(&allocation_, static_cast<size_t>(mapped.count()));
    if (status.code == kOutOfMemory) {
      throw CapacityError(fmt::format(
          "{}: {} of memory were asked for, {} are available of {}; lower the memory budget of the "
          "device (headrace.device_memory) or stop what else uses the GPU (nvidia-smi shows it)",
          gpu.describe(), format_bytes(size), format_bytes(available),
          format_bytes(Bytes(gpu.facts.memory))));
    }
    gpu.check(status, [&] { return fmt::format("cudaMalloc of {} bytes", mapped.count()); });
    data_ = align_up(static_cast<std::byte*>(allocation_), kPage.count());
    try {
      zero();
    } catch (...) {
      gpu_.log_failure(gpu_.api.release(allocation_), "cudaFree");
      throw;
    }
    ranges_.add(data_, std::max(size, Bytes(1)));
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  ~CudaMemory() override {
    ranges_.remove(data_);
    gpu_.log_failure(gpu_.api.release(allocation_), "cudaFree");
  }

  std::byte* data() override { return data_; }
  Bytes size() const override { return size_; }

 private:
  void zero() {
    const auto what = [&] { return fmt::format("clearing {} bytes", size_.count()); };
    if (size_.count() > 0) {
      gpu_.check(gpu_.api.fill(data_, 0, static_cast<size_t>(size_.count()), nullptr), what);
    }
    gpu_.check(gpu_.api.stream_synchronize(nullptr), what);
  }

  const Gpu& gpu_;
  AddressRanges& ranges_;
  Bytes size_;
  void* allocation_ = nullptr;
  std::byte* data_ = nullptr;
};

class CudaHostRegistration : public HostRegistration {
 public:
  CudaHostRegistration(const Gpu& gpu, AddressRanges& ranges, std::span<std::byte> memory)
      : gpu_(gpu), ranges_(ranges), begin_(memory.data()) {
    ranges_.add(begin_, Bytes(static_cast<int64_t>(memory.size())));
  }
  CudaHostRegistration(const CudaHostRegistration&) = delete;
  CudaHostRegistration& operator=(const CudaHostRegistration&) = delete;
  ~CudaHostRegistration() override {
    ranges_.remove(begin_);
    gpu_.log_failure(gpu_.api.host_unregister(begin_), "cudaHostUnregister");
  }

 private:
  const Gpu& gpu_;
  AddressRanges& ranges_;
  std::byte* begin_;
};

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<CudaApi> api, int ordinal, const GpuOptions& options,
                       OpenCuFile open_cufile, const OpenCudnn& open_cudnn)
    : api_(std::move(api)),
      gpu_(make_gpu(*api_, ordinal)),
      name_(fmt::format("cuda:{} {}", ordinal, gpu_.facts.name)),
      kernels_(gpu_, *this, options, open_cudnn),
      graphs_(options.graphs),
      open_cufile_(std::move(open_cufile)) {}

Bytes CudaDevice::free_memory() const {
  return free_memory_of(gpu_);
}

std::unique_ptr<Memory> CudaDevice::allocate(Bytes size) {
  gpu_.enter();
  return std::make_unique<CudaMemory>(gpu_, ranges_.device, size);
}

std::unique_ptr<Stream> CudaDevice::create_stream(std::string stream_name) {
  return std::make_unique<CudaStream>(gpu_, ranges_, std::move(stream_name), graphs_);
}

std::unique_ptr<HostRegistration> CudaDevice::register_host(std::span<std::byte> memory) {
  if (memory.empty()) {
    return nullptr;
  }
  gpu_.enter();
  const Status status = gpu_.api.host_register(memory.data(), memory.size());
  if (status.is_ok()) {
    return std::make_unique<CudaHostRegistration>(gpu_, ranges_.registered, memory);
  }
  log_message_once(
      LogLevel::warning, "cuda-host-register",
      fmt::format("host memory of {} is not page-locked for {} (cudaHostRegister: {}); training "
                  "works, but every copy between host and GPU is staged by the driver and takes a "
                  "host thread, at a half to a fifth of the link's rate; raise ulimit -l (in a "
                  "container: --ulimit memlock=-1), or lower the host memory budget",
                  format_bytes(Bytes(static_cast<int64_t>(memory.size()))), gpu_.describe(),
                  gpu_.api.describe(status)));
  return nullptr;
}

DirectSearch CudaDevice::open_direct_reader(std::span<std::byte> memory) {
  DirectSearch search;
  const std::shared_ptr<CuFileApi> cufile = open_cufile_(search.refusal);
  return cufile == nullptr ? std::move(search) : open_cufile_reader(gpu_, cufile, memory);
}

}  // namespace headrace::device::cuda
