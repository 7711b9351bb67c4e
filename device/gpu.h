#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/units.h"
#include "device/device.h"

namespace headrace::device {

/// When launches that come again in the same form are replayed as one CUDA graph.
enum class GraphUse : uint8_t {
  off,
  measured,  ///< where they keep the CPU longer than the GPU
  on,
};

/// Limits other than these are for tests.
struct GraphOptions {
  GraphUse use = GraphUse::off;
  int64_t least_launches = 4;  ///< fewer are posted one by one
  int64_t captured_at = 2;     ///< the time of their coming from which on they may be a graph
  int64_t most_known = 2048;   ///< what has not come among so many others is forgotten
  Bytes most_memory{
      int64_t{128} << 20};  ///< of the GPU, in graphs; the headroom of a budget holds it
};

/// Who computes attention on a GPU.
enum class AttentionChoice : uint8_t {
  own,      ///< our kernels
  cudnn,    ///< cuDNN where it is there and a trial shows that it agrees with our kernels
  fastest,  ///< the same, where it is faster too
};

/// How a GPU computes.
struct GpuOptions {
  /// fp32 products may round their operands to tf32 (10 bits of mantissa), which is several times
  /// as fast.
  bool tf32 = false;
  GraphOptions graphs{};
  AttentionChoice attention = AttentionChoice::own;
  /// Most scratch memory that cuDNN's attention may take.
  Bytes attention_workspace = kGiB;
};

/// A GPU that can be used.
struct GpuFound {
  std::string name;         ///< "NVIDIA H200"
  std::string pci_address;  ///< "0000:3b:00.0"
  std::string description;  ///< "NVIDIA H200, compute capability 9.0, 139.8 GiB, CUDA 13.0 ..."
  Bytes memory;
  Bytes free_memory;     ///< now
  bool has_fp8 = false;  ///< products in e4m3 (Kernels::matmul_scaled)
  std::function<std::unique_ptr<Device>(const GpuOptions& options)> make_device;
};

/// What a search came to: a GPU, or why there is none.
struct GpuSearch {
  std::optional<GpuFound> gpu;
  std::string refusal;
};

/// Opens the CUDA backend, a shared library that lies beside the executable (or at
/// $HEADRACE_CUDA_LIBRARY; empty: none), and looks for the first GPU. Never throws for want of one.
/// Thread-safe.
GpuSearch find_gpu();

}  // namespace headrace::device
