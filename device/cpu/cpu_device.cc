#include "device/cpu/cpu_device.h"

#include <utility>

#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_stream.h"

namespace headrace::device {

namespace cpu {

std::unique_ptr<Memory> CpuDevice::allocate(Bytes size) {
  return std::make_unique<CpuMemory>(size);
}

std::unique_ptr<Stream> CpuDevice::create_stream(std::string stream_name) {
  return std::make_unique<CpuStream>(std::move(stream_name));
}

}  // namespace cpu

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<cpu::CpuDevice>();
}

}  // namespace headrace::device
