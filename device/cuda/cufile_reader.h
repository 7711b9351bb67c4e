#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "device/cuda/cuda_status.h"
#include "device/cuda/cufile_api.h"
#include "device/direct_reader.h"

namespace headrace::device::cuda {

/// Direct reads into this memory of the GPU by cuFile. Refused unless cuFile's own ways through
/// host memory (compatibility, fallback and POSIX modes) are all off: then the memory is registered
/// with it, and a file from which nothing can be read directly is refused by the first read().
/// `gpu` must outlive the reader.
DirectSearch open_cufile_reader(const Gpu& gpu, std::shared_ptr<CuFileApi> api,
                                std::span<std::byte> memory);

}  // namespace headrace::device::cuda
