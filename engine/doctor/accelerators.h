#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/cuda/cudnn_api.h"
#include "device/gpu.h"
#include "engine/direct_path.h"

namespace headrace::engine {

struct Gpu {
  std::string name;
  Bytes memory;        ///< 0: unknown
  int numa_node = -1;  ///< -1: unknown, or the machine has one node
};

/// NVIDIA GPUs, as the driver and the PCI bus tell.
struct GpuFacts {
  int on_bus = 0;             ///< display controllers of NVIDIA on the PCI bus
  std::string driver;         ///< version of the kernel driver; empty: none is loaded
  std::string library_error;  ///< why libcuda.so.1 cannot be used; empty: it can
  int cuda_version = 0;       ///< largest that the driver knows: 12040 is 12.4
  std::vector<Gpu> gpus;      ///< as libcuda lists them, or the driver where it cannot be used
  std::string backend;        ///< on what a run computes with libheadrace_cuda.so; empty: it cannot
  std::string backend_refusal;  ///< why it cannot
};

/// The facts of the bus and the kernel driver, from /proc and /sys below `root`.
GpuFacts read_gpu_facts(const std::string& root = "");
/// The same, then what libcuda.so.1 says, which is loaded for it, and the search for a GPU.
GpuFacts detect_gpus(const device::GpuSearch& search);

/// GPUDirect Storage between the drive of a folder and the GPU.
struct DirectReadFacts {
  std::string folder;
  bool has_cufile = false;  ///< libcufile is there
  bool has_gpu = false;
  std::string description;  ///< of cuFile and its driver, where they work
  std::string refusal;      ///< why there are no direct reads; empty: there are
  PathRates rates;          ///< of a small file
};
/// Opens cuFile and reads a file in the folder into the GPU, which is gone afterwards.
DirectReadFacts try_direct_reads(const device::GpuSearch& search, const std::string& folder);

/// cuDNN, for attention.
struct CudnnFacts {
  std::string version;  ///< "9.19.0"; empty: it is not there
  std::string refusal;  ///< why it cannot be used; empty: it can
};
/// Loads it for its version.
CudnnFacts detect_cudnn(const device::cuda::OpenCudnn& open = device::cuda::open_cudnn_library);

struct MpiFacts {
  std::string version;  ///< "Open MPI v4.1.4, ..."; empty: no library was found
  std::string error;    ///< why not
  bool has_mpirun = false;
};
/// Loads libmpi for its version; looks for mpirun along $PATH.
MpiFacts detect_mpi();

}  // namespace headrace::engine
