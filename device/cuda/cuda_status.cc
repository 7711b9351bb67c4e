#include "device/cuda/cuda_status.h"

#include "base/log.h"

namespace headrace::device::cuda {

std::string Gpu::describe() const {
  return fmt::format("GPU {} ({}, {})", ordinal, facts.name, facts.pci_address);
}

void Gpu::enter() const {
  check(api.set_device(ordinal), [] { return std::string("cudaSetDevice"); });
}

void Gpu::fail(Status status, const std::string& what) const {
  throw CudaError(fmt::format(
      "{} failed on {}: {}; errors of work posted earlier show up at a later call, so the cause "
      "may "
      "lie before (CUDA_LAUNCH_BLOCKING=1 finds it); the run can be continued from its last "
      "committed step",
      what, describe(), api.describe(status)));
}

void Gpu::log_failure(Status status, const char* call) const noexcept {
  if (status.is_ok()) {
    return;
  }
  try {
    // After an error of the device every call fails with it: one message is enough.
    const std::string error = api.describe(status);
    log_message_once(LogLevel::warning, "cuda " + error,
                     fmt::format("{} failed on {}: {}", call, describe(), error));
  } catch (const std::exception&) {
    return;  // a message that cannot be formatted is lost
  }
}

}  // namespace headrace::device::cuda
