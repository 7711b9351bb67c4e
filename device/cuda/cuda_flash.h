#pragma once

#include <optional>

#include "device/cuda/cuda_status.h"
#include "device/cuda/launch.h"
#include "device/kernels.h"

/// The host side of tensor-core attention. Its sums are fp32, but probabilities and the gradients
/// of scores are rounded to the dtype for the products that take them.
namespace headrace::device::cuda {

/// Which of its kernels run this attention on this GPU: for bf16 and f16 with heads of up to 128
/// elements. None where the fp32 kernels do it (cuda_attention.cc). Addresses play no part, so that
/// the same numbers give the same bits wherever they lie.
std::optional<FlashVariant> flash_variant(const GpuFacts& gpu, const AttentionShape& shape,
                                          DType dtype);

/// Arguments as of Kernels, checked by the caller. The backward pass computes delta.
void post_flash_forward(const Gpu& gpu, Stream& stream, FlashVariant variant, DType dtype,
                        AttentionArguments arguments);
void post_flash_backward(const Gpu& gpu, Stream& stream, FlashVariant variant, DType dtype,
                         AttentionArguments arguments);

}  // namespace headrace::device::cuda
