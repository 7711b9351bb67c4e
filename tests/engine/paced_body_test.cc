#include "engine/paced_body.h"

#include <gtest/gtest.h>

#include "base/seconds.h"

namespace headrace::engine {
namespace {

using scheduler::Lane;

class Paced : public testing::Test {
 protected:
  Paced() {
    trace_.operations = {{"forward", Lane::compute, {}, 0}, {"update", Lane::cpu_optimizer, {}, 0}};
  }

  scheduler::Trace trace_;
  std::unique_ptr<device::Device> device_ = device::make_cpu_device();
  std::unique_ptr<device::Stream> compute_ = device_->create_stream("compute");
  int calls_ = 0;
  OperationBody body_ = [this](uint32_t, UseBytes) { ++calls_; };
};

TEST_F(Paced, OperationsTakeTheirTimeOnTheirLane) {
  Pace pace([](const auto& operation) { return operation.lane == Lane::compute ? 0.02 : 0.01; },
            *compute_);
  const OperationBody body = pace.wrap(trace_, body_);
  const double computing = seconds_of([&] {
    const double posting = seconds_of([&] {
      for (int i = 0; i < 5; ++i) {
        body(0, {});  // posts only
      }
    });
    EXPECT_LT(posting, 0.05);
    compute_->synchronize();
  });
  EXPECT_GE(computing, 0.1 - 1e-6);
  EXPECT_LT(computing, 0.2);
  const double updating = seconds_of([&] {
    for (int i = 0; i < 5; ++i) {
      body(1, {});
    }
  });
  EXPECT_GE(updating, 0.05 - 1e-6);
  EXPECT_LT(updating, 0.15);
  EXPECT_EQ(calls_, 10);
}

TEST_F(Paced, WithoutTimesBodiesStayAsTheyAre) {
  Pace pace(nullptr, *compute_);
  pace.wrap(trace_, body_)(1, {});
  EXPECT_EQ(calls_, 1);
}

}  // namespace
}  // namespace headrace::engine
