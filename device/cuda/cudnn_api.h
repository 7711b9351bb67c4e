#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/cuda/cuda_api.h"

/// The part of cuDNN's backend (graph) API that attention uses. The numbers are those of
/// cudnn_graph.h of cuDNN 9, which is not needed to build; a test compares them where it is there.
namespace headrace::device::cuda {

/// cudnnBackendDescriptorType_t.
enum class CudnnKind : int {
  pointwise = 0,
  engine = 2,
  engine_config = 3,
  engine_heuristics = 4,
  execution_plan = 5,
  operation_pointwise = 13,
  operation_graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  operation_matmul = 19,
  reduction = 21,
  operation_reduction = 22,
  operation_reshape = 31,
  device_properties = 38,
};

/// cudnnBackendAttributeName_t.
enum class CudnnAttribute : int {
  pointwise_mode = 0,
  pointwise_precision = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  config_engine = 300,
  config_workspace = 303,
  plan_handle = 400,
  plan_config = 401,
  plan_workspace = 402,
  operation_pointwise_descriptor = 750,
  operation_pointwise_x = 751,
  operation_pointwise_b = 752,
  operation_pointwise_y = 753,
  operation_pointwise_t = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_data_type = 901,
  tensor_dimensions = 902,
  tensor_strides = 903,
  tensor_unique_id = 906,
  tensor_is_virtual = 907,
  tensor_is_by_value = 908,
  pack_unique_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  engine_numerical_notes = 1303,
  matmul_precision = 1500,
  operation_matmul_a = 1520,
  operation_matmul_b = 1521,
  operation_matmul_c = 1522,
  operation_matmul_descriptor = 1523,
  reduction_operator = 1600,
  reduction_precision = 1601,
  operation_reduction_x = 1610,
  operation_reduction_y = 1611,
  operation_reduction_descriptor = 1612,
  operation_reshape_x = 2200,
  operation_reshape_y = 2201,
  device_json = 2702,
};

/// cudnnBackendAttributeType_t: what an attribute's elements are.
enum class CudnnElement : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  pointer = 6,
  heuristic_mode = 8,
  numerical_note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  character = 24,
};

/// cudnnDataType_t.
enum class CudnnData : int { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };

/// cudnnPointwiseMode_t.
enum class CudnnPointwise : int {
  add = 0,
  multiply = 1,
  divide = 6,
  subtract = 9,
  exponential = 13,
  logarithm = 15,
  greater_or_equal = 303,
  index = 501,   ///< of the position along an axis
  select = 601,  ///< t ? x : b
};

/// cudnnReduceTensorOp_t.
enum class CudnnReduction : int { add = 0, max = 3 };

/// cudnnBackendHeurMode_t.
enum class CudnnHeuristic : int { a = 3 };

/// cudnnBackendNumericalNote_t.
enum class CudnnNote : int { nondeterministic = 4 };

inline constexpr int kCudnnSuccess = 0;
/// Major * 10000 + minor * 100 + patch. Before it, gradients of sequences that are no multiples of
/// 128 need detours.
inline constexpr size_t kOldestCudnn = 91501;

struct CudnnContext;
using CudnnHandle = CudnnContext*;
using CudnnDescriptor = void*;

/// The calls of cuDNN that attention makes, with their meaning; they return a cudnnStatus_t:
/// libcudnn_graph opened at run time, or the fake of the tests. Calls act on the calling thread's
/// current device. Thread-safe as cuDNN's: a handle is for one thread at a time.
class CudnnApi {
 public:
  virtual ~CudnnApi() = default;
  virtual size_t version() = 0;
  virtual int create(CudnnHandle* handle) = 0;
  virtual int destroy(CudnnHandle handle) = 0;
  virtual int set_stream(CudnnHandle handle, StreamHandle stream) = 0;
  virtual int create_descriptor(CudnnKind kind, CudnnDescriptor* descriptor) = 0;
  virtual int destroy_descriptor(CudnnDescriptor descriptor) = 0;
  virtual int set_attribute(CudnnDescriptor descriptor, CudnnAttribute attribute,
                            CudnnElement element, int64_t count, const void* elements) = 0;
  virtual int finalize(CudnnDescriptor descriptor) = 0;
  /// `count` becomes how many there are, which may be more than `room`. Descriptors are made by the
  /// caller and filled.
  virtual int get_attribute(CudnnDescriptor descriptor, CudnnAttribute attribute,
                            CudnnElement element, int64_t room, int64_t* count, void* elements) = 0;
  virtual int execute(CudnnHandle handle, CudnnDescriptor plan, CudnnDescriptor pack) = 0;
  /// "CUDNN_STATUS_NOT_SUPPORTED (why)", of the calling thread's last call.
  virtual std::string describe(int status) = 0;
};

/// Opens cuDNN; null with the reason in `refusal`.
using OpenCudnn = std::function<std::shared_ptr<CudnnApi>(std::string& refusal)>;

/// libcudnn_graph.so.9, wherever the loader finds it, of any version. It stays loaded for the life
/// of the process.
std::shared_ptr<CudnnApi> open_cudnn_library(std::string& refusal);

/// "9.19.0".
std::string describe_cudnn_version(size_t version);
/// Why this version is not used; empty: it is.
std::string cudnn_version_refusal(size_t version);

}  // namespace headrace::device::cuda
