#pragma once

#include "device/device.h"

namespace headrace::device::cpu {

/// Anonymous pages of the process, zero at first, backed by transparent huge pages where the
/// system has them. Owns its mapping.
class CpuMemory : public Memory {
 public:
  /// Throws CapacityError, with what is free, if the system does not have `size` bytes.
  explicit CpuMemory(Bytes size);
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;
  ~CpuMemory() override;

  std::byte* data() override { return data_; }
  Bytes size() const override { return size_; }

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
  size_t mapped_bytes_ = 0;
};

}  // namespace headrace::device::cpu
