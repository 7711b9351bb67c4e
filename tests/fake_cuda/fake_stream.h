#pragma once

#include <mutex>

#include "base/completion.h"
#include "base/serial_worker.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace headrace::device::testing {

struct FakeCuda::Stream {
  explicit Stream(int on_device) : device(on_device), worker("fake-cuda") {}
  int device;
  SerialWorker worker;
};

struct FakeCuda::Event {
  std::mutex mutex;
  Completion reached = Completion::done();  ///< never recorded counts as reached
};

}  // namespace headrace::device::testing
