#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/units.h"
#include "proto/profile.pb.h"

namespace headrace::engine {

struct MachineProbeOptions {
  double seconds = 20;
  Bytes memory{768 << 20};  ///< for the arrays: far more than the caches hold
  std::function<void(double done, const std::string& doing)> progress;  ///< done: 0 to 1
  const std::atomic<bool>* cancelled = nullptr;  ///< set: InterruptedError soon
};

/// Measures this machine, all with the threads of OpenMP: memory by a kernel with the optimizer's
/// traffic and the optimizer's update by turns, then matrix products and copies of the device.
/// CapacityError where the memory cannot be had, InterruptedError.
proto::MachineProfile probe_machine(const MachineProbeOptions& options);

/// A table for people.
std::string render(const proto::MachineProfile& machine);

}  // namespace headrace::engine
