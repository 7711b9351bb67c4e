#pragma once

#include "device/cuda/kernels/flash_backward.inl.h"
#include "device/cuda/kernels/flash_delta.inl.h"
#include "device/cuda/kernels/flash_forward.inl.h"

/// From the names of a launch to the kernel of tensor-core attention, as dispatch.inl.h does for
/// the others; a file each, since they take long to compile.
namespace headrace::device::cuda {

template <template <class, FlashVariant> class Kernel, class T, class Run>
bool dispatch_flash_variant(FlashVariant variant, const Run& run) {
  switch (variant) {
    case FlashVariant::dim64:
      return run.template operator()<Kernel<T, FlashVariant::dim64>>();
    case FlashVariant::dim128:
      return run.template operator()<Kernel<T, FlashVariant::dim128>>();
    case FlashVariant::dim128_small:
      return run.template operator()<Kernel<T, FlashVariant::dim128_small>>();
  }
  return false;
}

template <template <class, FlashVariant> class Kernel, class Run>
bool dispatch_flash_type(const Launch& launch, const Run& run) {
  switch (launch.dtype) {
    case DType::bf16:
      return dispatch_flash_variant<Kernel, Bf16>(launch.variant, run);
    case DType::f16:
      return dispatch_flash_variant<Kernel, F16>(launch.variant, run);
    default:
      return false;
  }
}

template <class Run>
bool dispatch_flash_forward(const Launch& launch, const Run& run) {
  return launch.kernel == KernelId::flash_forward && dispatch_flash_type<FlashForward>(launch, run);
}
template <class Run>
bool dispatch_flash_keys(const Launch& launch, const Run& run) {
  return launch.kernel == KernelId::flash_backward_keys &&
         dispatch_flash_type<FlashBackwardKeys>(launch, run);
}
template <class Run>
bool dispatch_flash_queries(const Launch& launch, const Run& run) {
  switch (launch.kernel) {
    case KernelId::flash_delta:
      return dispatch_flash_type<FlashDelta>(launch, run);
    case KernelId::flash_backward_queries:
      return dispatch_flash_type<FlashBackwardQueries>(launch, run);
    default:
      return false;
  }
}

}  // namespace headrace::device::cuda
