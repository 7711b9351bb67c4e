#pragma once

#include <memory>
#include <optional>
#include <string>

#include "device/cuda/cuda_device.h"
#include "e2e/training_harness.h"
#include "engine/gpu_options.h"
#include "model/model_config.h"
#include "tests/fake_cuda/fake_cuda.h"

/// What the tests of training on the CUDA device share.
namespace headrace::test {

inline model::ModelConfig tiny_gpu_model(int64_t vocabulary = 203) {
  model::ModelConfig config;
  config.family = model::Family::qwen3;
  config.vocab_size = vocabulary;
  config.hidden_size = 64;
  config.intermediate_size = 136;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 24;
  config.max_positions = 64;
  config.qk_norm = true;
  return config;
}

inline CurveSettings gpu_curve(const std::string& folder, DType dtype, int32_t vocabulary = 203) {
  CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = dtype;
  settings.shape = {2, 24};
  settings.loss_scale = dtype == DType::f16 ? 1024 : 1;
  settings.steps = random_steps(7, 4, 2, settings.shape, vocabulary);
  settings.learning_rates.assign(settings.steps.size(), 1e-3);
  return settings;
}

/// What the search for a GPU finds, where the fake one is there.
inline device::GpuFound fake_gpu(
    const std::shared_ptr<device::testing::FakeCuda>& fake,
    const device::cuda::OpenCuFile& open_cufile = device::cuda::open_cufile_library,
    const device::cuda::OpenCudnn& open_cudnn = device::cuda::open_cudnn_library) {
  device::GpuFound found;
  found.description = "the fake GPU";
  found.make_device = [fake, open_cufile, open_cudnn](const device::GpuOptions& how) {
    return std::make_unique<device::cuda::CudaDevice>(fake, 0, how, open_cufile, open_cudnn);
  };
  return found;
}

/// The options of a run on the fake GPU.
inline engine::EngineOptions on_gpu(engine::EngineOptions options,
                                    const std::shared_ptr<device::testing::FakeCuda>& fake,
                                    const device::GpuOptions& how = {}) {
  engine::use_gpu(options, fake_gpu(fake), how);
  return options;
}

}  // namespace headrace::test
