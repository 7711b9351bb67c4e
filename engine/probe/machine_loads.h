#pragma once

#include <atomic>
#include <functional>

#include "aio/probe_storage.h"
#include "base/dtype.h"
#include "base/units.h"

// The single loads of a machine probe. Each runs for about `seconds` and gives a median rate.

namespace headrace::engine {

struct LoadTime {
  double seconds = 1;
  const std::atomic<bool>* cancelled = nullptr;  ///< set: InterruptedError
};

/// Calls `work` at least three times, until the time is over; median seconds of one call. The first
/// call is not counted.
double median_seconds(const LoadTime& time, const std::function<void()>& work);

/// Bytes that the traffic kernel reads and writes per element: four fp32 streams in, three back.
inline constexpr int kTrafficBytes = 28;
/// Bytes of memory per element of the traffic kernel, and at most of an optimizer state here.
inline constexpr int kElementBytes = 16;

/// Bytes read and written per second by a pass with the traffic of an fp32 optimizer step and
/// almost no arithmetic, on `threads` threads.
double memory_rate(aio::HugeMemory& memory, int threads, const LoadTime& time);

enum class StateKind : uint8_t {
  fp32,                ///< fp32 weights, moments and gradient
  split,               ///< split master, fp32 moments, bf16 gradient
  split_bf16_moments,  ///< split master, bf16 moments, bf16 gradient
  split_8bit_moments,  ///< split master, 8-bit moments, bf16 gradient
};
/// Bytes read and written per element of one step.
int traffic_bytes(StateKind kind);
/// Elements per second of an AdamW step.
double optimizer_rate(aio::HugeMemory& memory, StateKind kind, const LoadTime& time);

struct DeviceRates {
  double matmul_f32 = 0;  ///< floating-point operations per second
  double matmul_bf16 = 0;
  double to_device = 0;  ///< bytes per second
  double to_host = 0;
};
/// Of the CPU device; a quarter of the time each.
DeviceRates device_rates(const LoadTime& time);

}  // namespace headrace::engine
