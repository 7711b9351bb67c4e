#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "base/completion.h"
#include "base/serial_worker.h"
#include "device/device.h"

namespace headrace::device::cpu {

/// A point in a CpuStream: the completion of all work before it.
class CpuEvent : public Event {
 public:
  explicit CpuEvent(Completion reached) : reached_(std::move(reached)) {}
  bool is_done() const override { return reached_.is_done(); }
  void wait() const override { reached_.wait(); }

 private:
  Completion reached_;
};

/// One thread that runs posted work in order. Owns the thread; the destructor runs what is queued
/// and drops errors that nobody asked for. Waiting for a failed event is an error of the waiting
/// stream too: what comes after it depended on work that did not happen.
class CpuStream : public Stream {
 public:
  explicit CpuStream(std::string name) : worker_(std::move(name)) {}

  void copy_async(void* target, const void* source, Bytes size) override;
  void fill_zero_async(void* target, Bytes size) override;
  void wait(const EventRef& event) override;
  EventRef record() override;
  Completion record_completion() override;
  void run_on_host(std::function<void()> task) override;
  void synchronize() override;

 private:
  std::exception_ptr error_;  ///< the first one; only the worker's thread touches it
  SerialWorker worker_;       ///< last: its destructor drains before error_ goes
};

}  // namespace headrace::device::cpu
