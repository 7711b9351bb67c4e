#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "device/cuda/backend/launch_kernel.cuh"
#include "device/cuda/cuda_api.h"

// The calls of CudaApi, one to one, on the CUDA runtime and cuBLASLt. No decision is taken here:
// what can be got wrong lies on the host side, where the tests see it.
namespace headrace::device::cuda {

namespace {

Status status_of(cudaError_t code) {
  return {Status::Library::runtime, static_cast<int>(code)};
}
Status status_of(cublasStatus_t code) {
  return {Status::Library::cublas_lt, static_cast<int>(code)};
}

static_assert(kOutOfMemory == cudaErrorMemoryAllocation && kNotReady == cudaErrorNotReady &&
              kLtNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(sizeof(LtAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::u8:
      return CUDA_R_8F_E4M3;
    default:
      return CUDA_R_32F;
  }
}

/// A product as cuBLASLt describes it. Nothing in it is allocated.
class LtDescription {
 public:
  /// Of the operands, the bias and the scales count, where the product has them.
  LtDescription(const LtProduct& product, const LtOperands& operands) {
    const cublasComputeType_t compute =
        product.allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    keep(cublasLtMatmulDescInit(&operation_, compute, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (product.has_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    }
    if (product.ab_type == DType::u8) {
      // CUBLASLT_MATMUL_DESC_FAST_ACCUM stays off: sums go to fp32 in between.
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.a_scale);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.b_scale);
    }
    layout(a_, product.ab_type, product.a_rows, product.a_columns, product.lda);
    layout(b_, product.ab_type, product.b_rows, product.b_columns, product.ldb);
    layout(c_, product.c_type, product.c_rows, product.c_columns, product.ldc);
  }

  /// The first error on the way.
  cublasStatus_t status() const { return status_; }
  cublasLtMatmulDesc_t operation() { return &operation_; }
  cublasLtMatrixLayout_t a() { return &a_; }
  cublasLtMatrixLayout_t b() { return &b_; }
  cublasLtMatrixLayout_t c() { return &c_; }

 private:
  void keep(cublasStatus_t status) {
    if (status_ == CUBLAS_STATUS_SUCCESS) {
      status_ = status;
    }
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    keep(cublasLtMatmulDescSetAttribute(&operation_, attribute, &value, sizeof(value)));
  }
  void layout(cublasLtMatrixLayoutOpaque_t& made, DType dtype, int64_t rows, int64_t columns,
              int64_t ld) {
    keep(cublasLtMatrixLayoutInit(&made, data_type(dtype), static_cast<uint64_t>(rows),
                                  static_cast<uint64_t>(columns), ld));
  }

  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
  cublasLtMatmulDescOpaque_t operation_{};
  cublasLtMatrixLayoutOpaque_t a_{};
  cublasLtMatrixLayoutOpaque_t b_{};
  cublasLtMatrixLayoutOpaque_t c_{};
};

/// What an algorithm must keep to.
cublasStatus_t set_preference(cublasLtMatmulPreferenceOpaque_t& preference,
                              const LtProduct& product) {
  cublasStatus_t first = cublasLtMatmulPreferenceInit(&preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    const cublasStatus_t status =
        cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value));
    first = first == CUBLAS_STATUS_SUCCESS ? status : first;
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(product.workspace));
  // Parts of a sum are added in fp32, never in the type of the result.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.a_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.b_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.c_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.c_alignment);
  return first;
}

class RuntimeApi final : public CudaApi {
 public:
  RuntimeApi() = default;
  RuntimeApi(const RuntimeApi&) = delete;
  RuntimeApi& operator=(const RuntimeApi&) = delete;
  /// cuBLASLt's handles stay: one that static objects keep to the end of the process would be
  /// destroyed after CUDA.
  ~RuntimeApi() override = default;

  Status device_count(int* count) override { return status_of(cudaGetDeviceCount(count)); }
  Status device_facts(int device, GpuFacts* facts) override;
  Status set_device(int device) override { return status_of(cudaSetDevice(device)); }
  Status memory_info(size_t* available, size_t* total) override {
    return status_of(cudaMemGetInfo(available, total));
  }

  Status allocate(void** pointer, size_t size) override {
    return status_of(cudaMalloc(pointer, size));
  }
  Status release(void* pointer) override { return status_of(cudaFree(pointer)); }
  Status host_register(void* pointer, size_t size) override {
    return status_of(cudaHostRegister(pointer, size, cudaHostRegisterPortable));
  }
  Status host_unregister(void* pointer) override { return status_of(cudaHostUnregister(pointer)); }

  Status stream_create(StreamHandle* stream) override {
    return status_of(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  Status stream_destroy(StreamHandle stream) override {
    return status_of(cudaStreamDestroy(stream));
  }
  Status stream_synchronize(StreamHandle stream) override {
    return status_of(cudaStreamSynchronize(stream));
  }
  Status stream_wait_event(StreamHandle stream, EventHandle event) override {
    return status_of(cudaStreamWaitEvent(stream, event, 0));
  }
  Status event_create(EventHandle* event) override {
    return status_of(
        cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  Status timed_event_create(EventHandle* event) override {
    return status_of(cudaEventCreateWithFlags(event, cudaEventDefault));
  }
  Status event_destroy(EventHandle event) override { return status_of(cudaEventDestroy(event)); }
  Status event_record(EventHandle event, StreamHandle stream) override {
    return status_of(cudaEventRecord(event, stream));
  }
  Status event_query(EventHandle event) override { return status_of(cudaEventQuery(event)); }
  Status event_synchronize(EventHandle event) override {
    return status_of(cudaEventSynchronize(event));
  }
  Status event_elapsed(float* milliseconds, EventHandle begin, EventHandle end) override {
    return status_of(cudaEventElapsedTime(milliseconds, begin, end));
  }

  Status stream_begin_capture(StreamHandle stream) override {
    return status_of(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  }
  Status stream_end_capture(StreamHandle stream, GraphHandle* graph) override {
    return status_of(cudaStreamEndCapture(stream, graph));
  }
  Status graph_instantiate(GraphExecHandle* executable, GraphHandle graph) override {
    return status_of(cudaGraphInstantiateWithFlags(executable, graph, 0));
  }
  Status graph_destroy(GraphHandle graph) override { return status_of(cudaGraphDestroy(graph)); }
  Status graph_launch(GraphExecHandle executable, StreamHandle stream) override {
    return status_of(cudaGraphLaunch(executable, stream));
  }
  Status graph_executable_destroy(GraphExecHandle executable) override {
    return status_of(cudaGraphExecDestroy(executable));
  }

  Status copy(void* target, const void* source, size_t size, StreamHandle stream) override {
    return status_of(cudaMemcpyAsync(target, source, size, cudaMemcpyDefault, stream));
  }
  Status fill(void* target, int byte, size_t size, StreamHandle stream) override {
    return status_of(cudaMemsetAsync(target, byte, size, stream));
  }
  Status launch(const Launch& launch, const void* arguments, StreamHandle stream) override {
    cudaError_t result = cudaErrorInvalidDeviceFunction;
    if (!launch_elementwise(launch, arguments, stream, result) &&
        !launch_rows(launch, arguments, stream, result) &&
        !launch_optimizer(launch, arguments, stream, result) &&
        !launch_tiles(launch, arguments, stream, result) &&
        !launch_flash_forward(launch, arguments, stream, result) &&
        !launch_flash_keys(launch, arguments, stream, result)) {
      launch_flash_queries(launch, arguments, stream, result);
    }
    return status_of(result);
  }

  Status lt_choose(const LtProduct& product, LtAlgorithm* algorithm) override;
  Status lt_multiply(const LtProduct& product, const LtAlgorithm& algorithm, float alpha,
                     float beta, const LtOperands& operands, StreamHandle stream) override;

  const char* describe(Status status) override;

 private:
  /// cuBLASLt's handle for the calling thread's device.
  Status handle(cublasLtHandle_t* handle);

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<std::pair<int, int>, std::string> descriptions_;
};

Status RuntimeApi::device_facts(int device, GpuFacts* facts) {
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDeviceProperties(&properties, device);
  const auto then = [&](const auto& call) { status = status == cudaSuccess ? call() : status; };
  int shared_bytes = 0;
  *facts = {};
  then([&] {
    return cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  });
  then([&] {
    return cudaDeviceGetPCIBusId(facts->pci_address, sizeof(facts->pci_address), device);
  });
  then([&] { return cudaDriverGetVersion(&facts->driver_version); });
  then([&] { return cudaRuntimeGetVersion(&facts->runtime_version); });
  std::copy_n(properties.name, sizeof(facts->name) - 1, facts->name);
  facts->major = properties.major;
  facts->minor = properties.minor;
  facts->shared_bytes = shared_bytes;
  facts->memory = static_cast<int64_t>(properties.totalGlobalMem);
  return status_of(status);
}

Status RuntimeApi::handle(cublasLtHandle_t* handle) {
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) {
    return status_of(status);
  }
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(device);
  if (found != handles_.end()) {
    *handle = found->second;
    return status_of(CUBLAS_STATUS_SUCCESS);
  }
  const cublasStatus_t status = cublasLtCreate(handle);
  if (status == CUBLAS_STATUS_SUCCESS) {
    handles_.emplace(device, *handle);
  }
  return status_of(status);
}

Status RuntimeApi::lt_choose(const LtProduct& product, LtAlgorithm* algorithm) {
  cublasLtHandle_t lt = nullptr;
  if (const Status status = handle(&lt); !status.is_ok()) {
    return status;
  }
  // What the algorithm is chosen for: any address of a bias on 16 bytes, and scales, which are
  // looked at for being there.
  LtOperands some;
  some.bias = reinterpret_cast<const void*>(uintptr_t{16});
  some.a_scale = some.b_scale = reinterpret_cast<const float*>(uintptr_t{16});
  LtDescription description(product, some);
  if (description.status() != CUBLAS_STATUS_SUCCESS) {
    return status_of(description.status());
  }
  cublasLtMatmulPreferenceOpaque_t preference{};
  if (const cublasStatus_t status = set_preference(preference, product);
      status != CUBLAS_STATUS_SUCCESS) {
    return status_of(status);
  }
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      lt, description.operation(), description.a(), description.b(), description.c(),
      description.c(), &preference, 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return status_of(status);
  }
  if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) {
    return {Status::Library::cublas_lt, kLtNoneFound};
  }
  *algorithm = std::bit_cast<LtAlgorithm>(found.algo);
  return status_of(CUBLAS_STATUS_SUCCESS);
}

Status RuntimeApi::lt_multiply(const LtProduct& product, const LtAlgorithm& algorithm, float alpha,
                               float beta, const LtOperands& operands, StreamHandle stream) {
  cublasLtHandle_t lt = nullptr;
  if (const Status status = handle(&lt); !status.is_ok()) {
    return status;
  }
  LtDescription description(product, operands);
  if (description.status() != CUBLAS_STATUS_SUCCESS) {
    return status_of(description.status());
  }
  const auto chosen = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  return status_of(cublasLtMatmul(lt, description.operation(), &alpha, operands.a, description.a(),
                                  operands.b, description.b(), &beta, operands.c, description.c(),
                                  operands.c, description.c(), &chosen, operands.workspace,
                                  product.workspace, stream));
}

const char* RuntimeApi::describe(Status status) {
  const std::lock_guard lock(mutex_);
  std::string& text = descriptions_[{static_cast<int>(status.library), status.code}];
  if (!text.empty()) {
    return text.c_str();
  }
  if (status.library == Status::Library::runtime) {
    const auto code = static_cast<cudaError_t>(status.code);
    text = std::string(cudaGetErrorName(code)) + " (" + cudaGetErrorString(code) + ")";
  } else if (status.code == kLtNoneFound) {
    text = "no algorithm for this product";
  } else {
    const auto code = static_cast<cublasStatus_t>(status.code);
    text = std::string(cublasLtGetStatusName(code)) + " (" + cublasLtGetStatusString(code) + ")";
  }
  return text.c_str();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CudaApi* headrace_cuda_api(uint32_t version) {
  return version == kCudaApiVersion ? std::make_unique<RuntimeApi>().release() : nullptr;
}

}  // namespace headrace::device::cuda
