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

template <class Work>
void FakeCuda::use_memory(const Work& work) {
  protect(+1);
  work();
  protect(-1);
}

}  // namespace headrace::device::testing
