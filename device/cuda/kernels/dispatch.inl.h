#pragma once

#include "device/cuda/kernels/attention_grid.inl.h"
#include "device/cuda/kernels/elementwise_grid.inl.h"
#include "device/cuda/kernels/matmul_grid.inl.h"
#include "device/cuda/kernels/optimizer_grid.inl.h"
#include "device/cuda/kernels/quantize_grid.inl.h"
#include "device/cuda/kernels/row_grid.inl.h"

/// From the names of a launch to the kernel: run.template operator()<Kernel>() of the kernel it
/// means; false where there is none. Split as the backend's sources are, which compile side by
/// side.
namespace headrace::device::cuda {

template <template <class> class Kernel, class Run>
bool dispatch_type(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::f32:
      return run.template operator()<Kernel<float>>();
    case DType::bf16:
      return run.template operator()<Kernel<Bf16>>();
    case DType::f16:
      return run.template operator()<Kernel<F16>>();
    default:
      return false;
  }
}

template <class Source>
struct CastFrom {
  template <class Target>
  using To = Cast<Source, Target>;
};
/// Products end in the type of their operands or in fp32.
template <class T>
using MatmulToSame = Matmul<T, T>;
template <class T>
using MatmulToF32 = Matmul<T, float>;

template <class Run>
bool dispatch_cast(const Launch& launch, const Run& run) {
  switch (launch.dtype) {
    case DType::f32:
      return dispatch_type<CastFrom<float>::To>(launch.target_dtype, run);
    case DType::bf16:
      return dispatch_type<CastFrom<Bf16>::To>(launch.target_dtype, run);
    case DType::f16:
      return dispatch_type<CastFrom<F16>::To>(launch.target_dtype, run);
    default:
      return false;
  }
}

template <class Run>
bool dispatch_elementwise(const Launch& launch, const Run& run) {
  switch (launch.kernel) {
    case KernelId::zero_rows:
      return dispatch_type<ZeroRows>(launch.dtype, run);
    case KernelId::add_rows:
      return dispatch_type<AddRows>(launch.dtype, run);
    case KernelId::cast:
      return dispatch_cast(launch, run);
    case KernelId::accumulate:
      return dispatch_type<Accumulate>(launch.dtype, run);
    case KernelId::swiglu_forward:
      return dispatch_type<SwigluForward>(launch.dtype, run);
    case KernelId::swiglu_backward:
      return dispatch_type<SwigluBackward>(launch.dtype, run);
    case KernelId::largest_magnitude:
      return dispatch_type<LargestMagnitude>(launch.dtype, run);
    case KernelId::quantize:
      return dispatch_type<Quantize>(launch.dtype, run);
    default:
      return false;
  }
}

template <class Run>
bool dispatch_rows(const Launch& launch, const Run& run) {
  switch (launch.kernel) {
    case KernelId::bias_gradient:
      return dispatch_type<BiasGradient>(launch.dtype, run);
    case KernelId::rope:
      return dispatch_type<Rope>(launch.dtype, run);
    case KernelId::rms_norm_forward:
      return dispatch_type<RmsNormForward>(launch.dtype, run);
    case KernelId::rms_norm_backward:
      return dispatch_type<RmsNormBackward>(launch.dtype, run);
    case KernelId::sum_partials:
      return dispatch_type<SumPartials>(launch.dtype, run);
    case KernelId::embedding_forward:
      return dispatch_type<EmbeddingForward>(launch.dtype, run);
    case KernelId::embedding_backward:
      return dispatch_type<EmbeddingBackward>(launch.dtype, run);
    case KernelId::cross_entropy_start:
      return run.template operator()<CrossEntropyStart>();
    case KernelId::cross_entropy_tile:
      return run.template operator()<CrossEntropyTile>();
    case KernelId::cross_entropy_loss:
      return run.template operator()<CrossEntropyLoss>();
    case KernelId::cross_entropy_gradient:
      return dispatch_type<CrossEntropyGradient>(launch.dtype, run);
    default:
      return false;
  }
}

template <class Run>
bool dispatch_optimizer(const Launch& launch, const Run& run) {
  switch (launch.kernel) {
    case KernelId::optimizer_update:
      return run.template operator()<OptimizerUpdate>();
    case KernelId::gradient_statistics:
      return dispatch_type<GradientStatistics>(launch.dtype, run);
    default:
      return false;
  }
}

template <class Run>
bool dispatch_tiles(const Launch& launch, const Run& run) {
  switch (launch.kernel) {
    case KernelId::matmul:
      return launch.target_dtype == DType::f32 ? dispatch_type<MatmulToF32>(launch.dtype, run)
                                               : dispatch_type<MatmulToSame>(launch.dtype, run);
    case KernelId::attention_forward:
      return dispatch_type<AttentionForward>(launch.dtype, run);
    case KernelId::attention_delta:
      return dispatch_type<AttentionDelta>(launch.dtype, run);
    case KernelId::attention_backward_keys:
      return dispatch_type<AttentionBackwardKeys>(launch.dtype, run);
    case KernelId::attention_backward_queries:
      return dispatch_type<AttentionBackwardQueries>(launch.dtype, run);
    default:
      return false;
  }
}

}  // namespace headrace::device::cuda
