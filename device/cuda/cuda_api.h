#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/launch.h"

// CUDA's own handles, so that no CUDA header is needed here.
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;

namespace headrace::device::cuda {

using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using GraphHandle = CUgraph_st*;
using GraphExecHandle = CUgraphExec_st*;

/// What a call of the CUDA runtime or of cuBLASLt returned.
struct Status {
  enum class Library : uint8_t { runtime, cublas_lt };
  Library library = Library::runtime;
  int code = 0;
  bool is_ok() const { return code == 0; }
};

// Codes that the host side tells apart.
inline constexpr int kOutOfMemory = 2;        // cudaErrorMemoryAllocation
inline constexpr int kNotReady = 600;         // cudaErrorNotReady
inline constexpr int kLtNotSupported = 15;    // CUBLAS_STATUS_NOT_SUPPORTED
inline constexpr int kLtNoneFound = 0x10000;  // no algorithm for a product; not a code of cuBLASLt

/// What is known about one GPU.
struct GpuFacts {
  char name[256] = {};
  char pci_address[32] = {};  ///< "0000:01:00.0"
  int major = 0;              ///< compute capability
  int minor = 0;
  int64_t shared_bytes = 0;  ///< most shared memory of a block, opted in
  int64_t memory = 0;        ///< bytes
  int driver_version = 0;    ///< of CUDA that the driver speaks: 13000 is 13.0
  int runtime_version = 0;   ///< of the CUDA runtime in the backend
};

/// One product as cuBLASLt sees it: column-major d = alpha * op(a) op(b) + beta * c with d = c in
/// memory, fp32 accumulation, rounded once. a is [a_rows, a_columns] with leading dimension lda as
/// it lies in memory, before op.
struct LtProduct {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t a_rows = 0, a_columns = 0, lda = 0;
  int64_t b_rows = 0, b_columns = 0, ldb = 0;
  int64_t c_rows = 0, c_columns = 0, ldc = 0;
  DType ab_type = DType::f32;  ///< u8: codes in e4m3, which have a scale each
  DType c_type = DType::f32;
  bool allow_tf32 = false;  ///< fp32 operands may be rounded to tf32
  bool has_bias = false;    ///< a vector [c_rows] of c's type is added to every column of d
  // Powers of two, in bytes, that the addresses are multiples of; 16 at most.
  uint32_t a_alignment = 0, b_alignment = 0, c_alignment = 0;
  size_t workspace = 0;  ///< most bytes the algorithm may use

  bool operator==(const LtProduct&) const = default;
};

/// Device memory of one product.
struct LtOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  const float* a_scale = nullptr;  ///< what op(a) is multiplied by; null unless ab_type is u8
  const float* b_scale = nullptr;
  void* workspace = nullptr;
};

/// A cublasLtMatmulAlgo_t.
struct LtAlgorithm {
  uint64_t data[8] = {};
};

/// The calls of the CUDA runtime and of cuBLASLt that the backend makes, with their meaning, and
/// the launch of its kernels: the seam between the host side, which is ordinary C++ built
/// everywhere, and libheadrace_cuda.so, or the fake of the tests. Calls act on the calling thread's
/// current device. Thread-safe as CUDA's.
class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual Status device_count(int* count) = 0;
  virtual Status device_facts(int device, GpuFacts* facts) = 0;
  virtual Status set_device(int device) = 0;
  virtual Status memory_info(size_t* available, size_t* total) = 0;

  virtual Status allocate(void** pointer, size_t size) = 0;
  virtual Status release(void* pointer) = 0;
  virtual Status host_register(void* pointer, size_t size) = 0;
  virtual Status host_unregister(void* pointer) = 0;

  /// Non-blocking towards the default stream.
  virtual Status stream_create(StreamHandle* stream) = 0;
  virtual Status stream_destroy(StreamHandle stream) = 0;
  virtual Status stream_synchronize(StreamHandle stream) = 0;
  virtual Status stream_wait_event(StreamHandle stream, EventHandle event) = 0;
  /// Without timing; who waits for it sleeps.
  virtual Status event_create(EventHandle* event) = 0;
  virtual Status timed_event_create(EventHandle* event) = 0;
  virtual Status event_destroy(EventHandle event) = 0;
  virtual Status event_record(EventHandle event, StreamHandle stream) = 0;
  virtual Status event_query(EventHandle event) = 0;
  virtual Status event_synchronize(EventHandle event) = 0;
  /// Of two timed events that were recorded; kNotReady before both are reached.
  virtual Status event_elapsed(float* milliseconds, EventHandle begin, EventHandle end) = 0;

  /// From here to the end of the capture, calls on the stream come from the calling thread, which
  /// calls nothing else (cudaStreamCaptureModeThreadLocal), and become nodes of a graph.
  virtual Status stream_begin_capture(StreamHandle stream) = 0;
  virtual Status stream_end_capture(StreamHandle stream, GraphHandle* graph) = 0;
  virtual Status graph_instantiate(GraphExecHandle* executable, GraphHandle graph) = 0;
  virtual Status graph_destroy(GraphHandle graph) = 0;
  virtual Status graph_launch(GraphExecHandle executable, StreamHandle stream) = 0;
  virtual Status graph_executable_destroy(GraphExecHandle executable) = 0;

  /// The direction follows from the addresses. Not asynchronous where a side is pageable.
  virtual Status copy(void* target, const void* source, size_t size, StreamHandle stream) = 0;
  virtual Status fill(void* target, int byte, size_t size, StreamHandle stream) = 0;
  /// `arguments` is the kernel's argument structure (launch.h), copied before the call returns.
  virtual Status launch(const Launch& launch, const void* arguments, StreamHandle stream) = 0;

  /// The best algorithm for the product that needs no more than its workspace and adds in fp32
  /// only; kLtNoneFound if there is none.
  virtual Status lt_choose(const LtProduct& product, LtAlgorithm* algorithm) = 0;
  virtual Status lt_multiply(const LtProduct& product, const LtAlgorithm& algorithm, float alpha,
                             float beta, const LtOperands& operands, StreamHandle stream) = 0;

  /// "cudaErrorInvalidValue (invalid argument)"; valid for the life of the object.
  virtual const char* describe(Status status) = 0;
};

/// Version of CudaApi and of launch.h: binary and library must agree.
inline constexpr uint32_t kCudaApiVersion = 4;
/// What libheadrace_cuda.so exports, extern "C": the API if `version` is its own, else null. The
/// caller owns it; the library is not to be unloaded.
using CudaEntry = CudaApi*(uint32_t version);
inline constexpr const char* kCudaEntryName = "headrace_cuda_api";
inline constexpr const char* kCudaLibrary = "libheadrace_cuda.so";

}  // namespace headrace::device::cuda
