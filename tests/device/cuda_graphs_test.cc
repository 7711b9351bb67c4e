// CUDA graphs of the host side against the fake GPU: what is replayed, what is not, and that
// neither changes a bit.
#include <algorithm>
#include <future>

#include "base/log.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/key_bytes.h"
#include "tests/device/device_suite.h"

namespace headrace::device::testing {
namespace {

constexpr int64_t kSize = 24;

class CudaGraphsTest : public ::testing::Test {
 protected:
  static GraphOptions graphs(GraphUse use) {
    GraphOptions options;
    options.use = use;
    return options;
  }
  void start(const GraphOptions& how, const FakeCuda::Options& options = {}) {
    out_.reset();
    x_.reset();
    inv_rms_.reset();
    scratch_.reset();
    stream_.reset();
    device_.reset();
    fake_ = std::make_shared<FakeCuda>(options);
    GpuOptions gpu;
    gpu.graphs = how;
    device_ = std::make_unique<cuda::CudaDevice>(fake_, 0, gpu);
    stream_ = device_->create_stream("test");
    Random random(5, 0);
    x_.emplace(*device_, *stream_, DType::f32, kSize, kSize, kSize);
    x_->fill_normal(random);
    out_.emplace(*device_, *stream_, DType::f32, kSize, kSize, kSize);
    inv_rms_.emplace(*device_, *stream_, DType::f32, 1, kSize, kSize);
    scratch_ = device_->allocate(scratch_size());
  }
  void TearDown() override {
    out_.reset();
    x_.reset();
    inv_rms_.reset();
    scratch_.reset();
    stream_.reset();
    device_.reset();
    if (fake_) {
      EXPECT_EQ(fake_->live_objects(), 0);
    }
  }
  Bytes scratch_size() {
    return device_->kernels().matmul_scratch(x_->view(), false, x_->view(), true, out_->view());
  }

  /// Kernels, a product, a fill and a copy within the device. `out` is a function of x and epsilon.
  void post(float epsilon = 1e-5F) {
    Kernels& kernels = device_->kernels();
    const Matrix x = x_->view();
    const Matrix out = out_->view();
    stream_->fill_zero_async(out.data, Bytes(kSize * kSize * 4));
    kernels.matmul(*stream_, x, false, x, true, out, true, {scratch_->data(), scratch_size()});
    kernels.rms_norm_forward(*stream_, out, x.data, epsilon, out, inv_rms_->data<float>());
    kernels.add(*stream_, out, x, out);
    stream_->copy_async(out.data, x.data, Bytes(kSize * 4));
    kernels.swiglu_forward(*stream_, out, x, out);
  }
  static constexpr int64_t kKernels = 3;  ///< of post()
  static constexpr int64_t kLaunches = 6;

  std::vector<std::byte> bits_of(float epsilon = 1e-5F) {
    post(epsilon);
    return out_->download().bits();
  }
  std::vector<std::byte> bits_without_graphs(float epsilon = 1e-5F) {
    start(graphs(GraphUse::off));
    return bits_of(epsilon);
  }

  std::shared_ptr<FakeCuda> fake_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::optional<TestMatrix> x_;
  std::optional<TestMatrix> out_;
  std::optional<TestMatrix> inv_rms_;
  std::unique_ptr<Memory> scratch_;
};

TEST_F(CudaGraphsTest, WhatComesAgainIsReplayed) {
  const std::vector<std::byte> expected = bits_without_graphs();
  start(graphs(GraphUse::on));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(bits_of(), expected) << i;
  }
  EXPECT_EQ(fake_->calls("graph_launch"), 4);
  EXPECT_EQ(fake_->calls("launch"), 2 * kKernels) << "once, and once more to be recorded";
  EXPECT_EQ(fake_->calls("lt_multiply"), 2);
  EXPECT_EQ(fake_->calls("graph_instantiate"), 1);
}

TEST_F(CudaGraphsTest, OneBitOfAnArgumentMakesAnotherList) {
  constexpr float kEpsilon = 4096;
  const float next = std::nextafter(kEpsilon, 1.0F);
  const std::vector<std::byte> expected = bits_without_graphs(kEpsilon);
  const std::vector<std::byte> expected_next = bits_without_graphs(next);
  ASSERT_NE(expected, expected_next);
  start(graphs(GraphUse::on));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(bits_of(kEpsilon), expected) << i;
    EXPECT_EQ(bits_of(next), expected_next) << i;
  }
  EXPECT_EQ(fake_->calls("graph_instantiate"), 2);
}

/// As the numbers of an optimizer's step do.
TEST_F(CudaGraphsTest, WhatIsNewEachTimeIsNeverCaptured) {
  start(graphs(GraphUse::on));
  for (int i = 0; i < 5; ++i) {
    bits_of(1.0F / static_cast<float>(i + 1));
  }
  EXPECT_EQ(fake_->calls("stream_begin_capture"), 0);
  EXPECT_EQ(fake_->calls("launch"), 5 * kKernels);
}

TEST_F(CudaGraphsTest, GraphsEndWhereAnythingElseIsPosted) {
  start(graphs(GraphUse::on));
  cuda::CudaStream& stream = dynamic_cast<cuda::CudaStream&>(*stream_);
  const auto other = device_->create_stream("other");
  std::vector<std::byte> between(4);
  int64_t opaque = 0;
  for (int i = 0; i < 3; ++i) {
    post();
    stream_->run_on_host([] {});
    post();
    stream.post([&](cuda::StreamHandle) { ++opaque; });
    post();
    stream_->copy_async(between.data(), out_->data(), Bytes(4));
    post();
    stream_->wait(other->record());
    post();
    stream_->synchronize();
  }
  EXPECT_EQ(opaque, 3) << "an opaque call is made each time";
  EXPECT_EQ(fake_->calls("graph_instantiate"), 1);
  EXPECT_EQ(fake_->calls("graph_launch"), 3 * 5 - 1) << "the five lists are the same";
}

/// Work that comes while the stream's thread is busy goes through it.
TEST_F(CudaGraphsTest, ListsThatAreQueuedBehindTheHostAreReplayedInOrder) {
  const std::vector<std::byte> expected = bits_without_graphs();
  start(graphs(GraphUse::on));
  std::promise<void> gate;
  stream_->run_on_host([opened = gate.get_future().share()] { opened.wait(); });
  const EventRef events[] = {(post(), stream_->record()), (post(), stream_->record())};
  EXPECT_EQ(fake_->calls("lt_multiply"), 0);
  gate.set_value();
  events[1]->wait();
  EXPECT_EQ(out_->download().bits(), expected);
  EXPECT_EQ(fake_->calls("graph_launch"), 1);
}

TEST_F(CudaGraphsTest, WhatIsHeldBackRunsBeforeTheStreamEnds) {
  start(graphs(GraphUse::on));
  post();
  EXPECT_EQ(fake_->calls("lt_multiply"), 0);
  stream_.reset();
  EXPECT_EQ(fake_->calls("lt_multiply"), 1);
}

TEST_F(CudaGraphsTest, FewLaunchesAreNotWorthAGraph) {
  GraphOptions how = graphs(GraphUse::on);
  for (const int64_t least : {kLaunches, kLaunches + 1}) {
    how.least_launches = least;
    start(how);
    bits_of();
    bits_of();
    EXPECT_EQ(fake_->calls("graph_launch"), least == kLaunches ? 1 : 0);
  }
}

TEST_F(CudaGraphsTest, MeasuredListsAreCapturedWhereTheCpuTakesLonger) {
  for (const bool is_bound : {true, false}) {
    start(graphs(GraphUse::measured));
    fake_->pretend_elapsed(is_bound ? 1e-6F : 1e6F);
    for (int i = 0; i < 4; ++i) {
      bits_of();
    }
    // The second one is measured, the third one knows.
    EXPECT_EQ(fake_->calls("timed_event_create"), 2);
    EXPECT_EQ(fake_->calls("event_elapsed"), 1);
    EXPECT_EQ(fake_->calls("graph_launch"), is_bound ? 2 : 0);
  }
}

TEST_F(CudaGraphsTest, MeasuringTakesRealTimesToo) {
  const std::vector<std::byte> expected = bits_without_graphs();
  start(graphs(GraphUse::measured));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(bits_of(), expected);
  }
  EXPECT_EQ(fake_->calls("event_elapsed"), 1);
}

TEST_F(CudaGraphsTest, NoMoreMemoryIsTakenThanAllowed) {
  FakeCuda::Options options;
  options.node_bytes = 1 << 20;
  GraphOptions how = graphs(GraphUse::on);
  how.most_memory = kMiB * (2 * kLaunches);
  start(how, options);
  for (int round = 0; round < 3; ++round) {
    for (const float epsilon : {1.0F, 2.0F, 3.0F, 4.0F}) {
      bits_of(epsilon);
    }
  }
  EXPECT_EQ(fake_->calls("graph_instantiate"), 2);
  EXPECT_EQ(fake_->calls("graph_launch"), 2 * 2);
}

TEST_F(CudaGraphsTest, WhatHasNotComeForLongIsForgottenAndItsGraphGivenBack) {
  FakeCuda::Options options;
  options.node_bytes = 1 << 20;
  GraphOptions how = graphs(GraphUse::on);
  how.most_known = 2;
  how.most_memory = kMiB * kLaunches;
  start(how, options);
  bits_of(1.0F);
  bits_of(1.0F);
  for (const float epsilon : {2.0F, 3.0F}) {
    bits_of(epsilon);
  }
  EXPECT_EQ(fake_->calls("graph_executable_destroy"), 0);
  bits_of(4.0F);
  EXPECT_EQ(fake_->calls("graph_executable_destroy"), 1);
  bits_of(4.0F);
  EXPECT_EQ(fake_->calls("graph_launch"), 2) << "there is room again";
}

/// A list that is captured, replayed, forgotten and captured again while the device is far behind:
/// the fake takes no graph back that still runs.
TEST_F(CudaGraphsTest, AGraphThatMayStillRunIsNotDestroyed) {
  GraphOptions how = graphs(GraphUse::on);
  how.most_known = 1;
  std::vector<std::string> messages;
  const LogCapture capture([&](LogLevel, const std::string& text) { messages.push_back(text); });
  start(how);
  TestMatrix large(*device_, *stream_, DType::f32, 1 << 11, 1 << 11, 1 << 11);
  for (int i = 0; i < 8; ++i) {
    const float epsilon = i / 2 % 2 == 0 ? 1.0F : 2.0F;
    device_->kernels().add(*stream_, large.view(), large.view(), large.view());
    post(epsilon);
    const EventRef end = stream_->record();
  }
  EXPECT_EQ(fake_->calls("graph_executable_destroy"), 0) << "nobody has waited for the stream";
  stream_->synchronize();
  stream_->run_on_host([] {});
  stream_->synchronize();
  EXPECT_GT(fake_->calls("graph_executable_destroy"), 0);
  EXPECT_EQ(messages, std::vector<std::string>());
}

struct Fault {
  const char* call;
  GraphUse use;
  int64_t skipped = 0;
  bool is_said = true;  ///< as the reason for going on without graphs

  friend std::ostream& operator<<(std::ostream& out, const Fault& fault) {
    return out << fault.call << " after " << fault.skipped;
  }
};

class CudaGraphFaults : public CudaGraphsTest, public ::testing::WithParamInterface<Fault> {};

TEST_P(CudaGraphFaults, LeaveTheStepAsItIs) {
  const std::vector<std::byte> expected = bits_without_graphs();
  std::vector<std::string> messages;
  const LogCapture capture([&](LogLevel, const std::string& text) { messages.push_back(text); });
  start(graphs(GetParam().use));
  fake_->pretend_elapsed(1e-6F);
  constexpr int kUnknown = 999;
  fake_->fail_call(GetParam().call, GetParam().skipped, kUnknown);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(bits_of(), expected) << i;
  }
  const int64_t before = fake_->calls("graph_launch");
  bits_of();
  EXPECT_EQ(fake_->calls("graph_launch"), before + (GetParam().is_said ? 0 : 1));
  const auto is_reason = [](const std::string& text) {
    return text.find("CUDA graphs are not used any more") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(messages.begin(), messages.end(), is_reason), GetParam().is_said ? 1 : 0);
  EXPECT_LE(messages.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, CudaGraphFaults,
    ::testing::Values(
        Fault{"stream_begin_capture", GraphUse::on}, Fault{"stream_end_capture", GraphUse::on},
        Fault{"graph_instantiate", GraphUse::on}, Fault{"graph_launch", GraphUse::on},
        Fault{"graph_launch", GraphUse::on, 2}, Fault{"graph_destroy", GraphUse::on, 0, false},
        Fault{"memory_info", GraphUse::on}, Fault{"memory_info", GraphUse::on, 1},
        Fault{"launch", GraphUse::on, 4}, Fault{"lt_multiply", GraphUse::on, 1},
        Fault{"timed_event_create", GraphUse::measured},
        Fault{"timed_event_create", GraphUse::measured, 1},
        Fault{"event_elapsed", GraphUse::measured},
        // Before and behind the list that is measured; the stream's own are two.
        Fault{"event_record", GraphUse::measured, 2}, Fault{"event_record", GraphUse::measured, 3},
        // At the end of the stream.
        Fault{"graph_executable_destroy", GraphUse::on, 0, false}),
    [](const auto& made) {
      return fmt::format("{}_after_{}", made.param.call, made.param.skipped);
    });

TEST_F(CudaGraphsTest, ADriverWithoutGraphsTrainsWithoutThem) {
  FakeCuda::Options options;
  options.can_capture = false;
  const std::vector<std::byte> expected = bits_without_graphs();
  start(graphs(GraphUse::on), options);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(bits_of(), expected);
  }
  EXPECT_EQ(fake_->calls("stream_begin_capture"), 1) << "it is not tried again";
}

TEST_F(CudaGraphsTest, AnErrorOfTheDeviceInAReplayIsTheStreams) {
  start(graphs(GraphUse::on));
  bits_of();
  bits_of();
  fake_->fail_on_device(1, 700);
  post();
  EXPECT_THROW(stream_->synchronize(), cuda::CudaError);
  EXPECT_EQ(fake_->calls("graph_launch"), 2);
}

TEST(KeyBytes, HoldMembersAndNothingBetweenThem) {
  cuda::RopeArguments arguments;
  std::string key;
  cuda::append_bytes(key, arguments);
  EXPECT_EQ(key.size(), 3 * sizeof(void*) + 4 * sizeof(int64_t) + sizeof(float));
  const auto bytes_of = [](const auto& value) {
    std::string bytes;
    cuda::append_bytes(bytes, value);
    return bytes;
  };
  EXPECT_NE(bytes_of(0.0F), bytes_of(-0.0F));
  arguments.sign = -1;
  EXPECT_NE(bytes_of(arguments), key);
  cuda::OptimizerArguments update;
  const std::string before = bytes_of(update);
  update.step.quotient[3] = 1;
  EXPECT_NE(bytes_of(update), before);
  update.step.quotient[3] = 0;
  EXPECT_EQ(bytes_of(update), before);
  update.arrays.count = 1;
  EXPECT_NE(bytes_of(update), before);
}

}  // namespace
}  // namespace headrace::device::testing
