#pragma once

#include <memory>
#include <span>
#include <string>

#include "device/cuda/cuda_kernels.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/cufile_api.h"
#include "device/cuda/host_ranges.h"
#include "device/device.h"
#include "device/gpu.h"

namespace headrace::device::cuda {

/// One GPU behind the Device contract. Thread-safe.
class CudaDevice : public Device {
 public:
  /// `open_cufile`: where direct reads come from; `open_cudnn`: where attention may. CudaError if
  /// the GPU cannot be used.
  CudaDevice(std::shared_ptr<CudaApi> api, int ordinal, const GpuOptions& options = {},
             OpenCuFile open_cufile = open_cufile_library,
             const OpenCudnn& open_cudnn = open_cudnn_library);

  std::string_view name() const override { return name_; }
  bool is_host_addressable() const override { return false; }
  std::unique_ptr<Memory> allocate(Bytes size) override;
  std::unique_ptr<Stream> create_stream(std::string stream_name) override;
  Kernels& kernels() override { return kernels_; }
  std::unique_ptr<HostRegistration> register_host(std::span<std::byte> memory) override;
  DirectSearch open_direct_reader(std::span<std::byte> memory) override;

  const GpuFacts& facts() const { return gpu_.facts; }
  /// Of its memory, now.
  Bytes free_memory() const;

 private:
  std::shared_ptr<CudaApi> api_;
  Gpu gpu_;
  std::string name_;
  HostRanges ranges_;
  CudaKernels kernels_;
  GraphOptions graphs_;
  OpenCuFile open_cufile_;
};

/// device::find_gpu() behind the API: a GPU that has run a kernel, or why there is none.
GpuSearch find_gpu(const std::shared_ptr<CudaApi>& api);

}  // namespace headrace::device::cuda
