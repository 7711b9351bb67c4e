#pragma once

#include <memory>
#include <string>

#include "device/cpu/cpu_kernels.h"
#include "device/device.h"

namespace headrace::device::cpu {

/// The CPU behind the Device contract. Streams and memory share nothing with it, so any thread may
/// call it.
class CpuDevice : public Device {
 public:
  std::string_view name() const override { return "cpu"; }
  bool is_host_addressable() const override { return true; }
  std::unique_ptr<Memory> allocate(Bytes size) override;
  std::unique_ptr<Stream> create_stream(std::string stream_name) override;
  Kernels& kernels() override { return kernels_; }
  std::unique_ptr<HostRegistration> register_host(std::span<std::byte> /*memory*/) override {
    return nullptr;
  }

 private:
  CpuKernels kernels_;
};

}  // namespace headrace::device::cpu
