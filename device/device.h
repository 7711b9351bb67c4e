#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/completion.h"
#include "base/units.h"
#include "device/direct_reader.h"

namespace headrace::device {

class Kernels;

/// A block of device memory, page aligned, zero at first; freed with the object. Its bytes can be
/// addressed by the CPU only where Device::is_host_addressable().
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* data() = 0;
  virtual Bytes size() const = 0;
};

/// A point in a stream. Cheap shared handle.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool is_done() const = 0;
  /// Blocks the calling thread; rethrows the first error of the stream up to this point.
  virtual void wait() const = 0;
};
using EventRef = std::shared_ptr<const Event>;

/// An asynchronous queue of work in order. Work posted to different streams runs in any order
/// unless an event says otherwise. One thread at a time may post to a stream. After an error the
/// stream runs nothing more; every later event and completion reports the first error.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Both ranges must stay valid until the copy has run.
  virtual void copy_async(void* target, const void* source, Bytes size) = 0;
  virtual void fill_zero_async(void* target, Bytes size) = 0;
  /// Later work of this stream starts after `event`.
  virtual void wait(const EventRef& event) = 0;
  virtual EventRef record() = 0;
  /// Ends when all work posted so far has run.
  virtual Completion record_completion() = 0;
  /// Runs on the host after all earlier work; for CPU-side work that belongs in the order.
  virtual void run_on_host(std::function<void()> task) = 0;
  virtual void synchronize() = 0;
};

/// Host memory that a device copies from and to on its own, for as long as this lives.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
};

/// One compute device. Thread-safe except where noted. Streams and memory must not outlive it.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  /// Whether the CPU may read and write Memory of this device.
  virtual bool is_host_addressable() const = 0;
  /// Throws CapacityError with what is free if the memory cannot be had.
  virtual std::unique_ptr<Memory> allocate(Bytes size) = 0;
  virtual std::unique_ptr<Stream> create_stream(std::string stream_name) = 0;
  virtual Kernels& kernels() = 0;
  /// Page-locks host memory, so that copies of it are direct and take no host thread. Null where
  /// nothing is gained, or where it is refused: then copies are staged, which is logged once with
  /// the reason and what it costs. The memory must outlive the registration.
  virtual std::unique_ptr<HostRegistration> register_host(std::span<std::byte> memory) = 0;
  /// A reader of files into this range of one Memory of the device, which must outlive it, or why
  /// there is none. That it moves bytes, and how fast, is for the caller to try.
  virtual DirectSearch open_direct_reader(std::span<std::byte> /*memory*/) {
    return {nullptr, "the device that computes is no GPU"};
  }
};

/// The CPU as a device: streams are threads, memory is anonymous pages (transparent huge pages
/// where the system has them), matrix products go to oneDNN.
std::unique_ptr<Device> make_cpu_device();

}  // namespace headrace::device
