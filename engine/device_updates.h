#pragma once

#include <cstdint>

#include "device/device.h"
#include "device/kernels.h"
#include "engine/executor.h"
#include "engine/model_layout.h"
#include "engine/optimizer/update.h"
#include "engine/step_trace.h"

namespace headrace::engine {

/// The optimizer of the shards whose state lives on the device, as work of the compute stream: the
/// device is never written by the CPU. The same bits as on the CPU. Called on the driver thread;
/// what it is made of must outlive it.
class DeviceUpdates {
 public:
  /// `not_finite`: four bytes of the device for the updates of one step at a time.
  DeviceUpdates(const ModelLayout& layout, device::Kernels& kernels, device::Stream& stream,
                int32_t* not_finite)
      : layout_(layout), kernels_(kernels), stream_(stream), not_finite_(not_finite) {}

  /// Before the updates of a step.
  void start();
  /// After them: sets *all_finite, on the stream, to whether every new value is finite.
  void finish(bool* all_finite);

  /// Sums of squares of a final gradient into the layout's device_statistics; gaps between
  /// parameters become zeros.
  void measure(const StepOperation& step, UseBytes uses);
  /// Adds an embedding's accumulator to the other one.
  void join_sums(const StepOperation& step, UseBytes uses);
  void update(const StepOperation& step, UseBytes uses, const UpdateOptions& options);
  /// Of a skipped step: writes the weights anew where they may be written at all.
  void rewrite_weights(const StepOperation& step, UseBytes uses);

 private:
  const Shard& shard_of(const StepOperation& step) const;
  void clear(std::byte* data, Bytes size);

  const ModelLayout& layout_;
  device::Kernels& kernels_;
  device::Stream& stream_;
  int32_t* not_finite_;
  int32_t fetched_ = 0;
};

}  // namespace headrace::engine
