#pragma once

#include <map>

#include "device/cuda/cudnn_api.h"

namespace headrace::device::testing {

/// What cuDNN knows of an attribute.
struct CudnnRule {
  cuda::CudnnKind kind;
  cuda::CudnnElement element;
  size_t size;  ///< of an element
  int64_t most = 1;
  bool is_needed = true;  ///< before the descriptor is final
};

/// Of the attributes that are set; those that are read are in FakeCudnn::get_attribute().
const std::map<cuda::CudnnAttribute, CudnnRule>& cudnn_rules();

}  // namespace headrace::device::testing
