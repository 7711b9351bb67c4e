// That the fake GPU captures as CUDA says it does.
#include <future>
#include <thread>

#include "tests/device/device_suite.h"

namespace headrace::device::testing {
namespace {

constexpr int kIllegalState = 401;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureIsolation = 905;
constexpr int kCapturedEvent = 907;
constexpr int kCaptureWrongThread = 908;
constexpr size_t kBytes = 64;

class FakeGraphsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fake_.set_device(0).is_ok());
    ASSERT_TRUE(fake_.stream_create(&stream_).is_ok());
    ASSERT_TRUE(fake_.allocate(&memory_, kBytes).is_ok());
    fill(0);
  }
  void fill(int byte) { EXPECT_EQ(fake_.fill(memory_, byte, kBytes, stream_).code, 0); }
  int first_byte() {
    EXPECT_EQ(fake_.stream_synchronize(stream_).code, 0);
    return static_cast<int>(*static_cast<const std::byte*>(memory_));
  }
  void begin() { ASSERT_EQ(fake_.stream_begin_capture(stream_).code, 0); }
  int end() { return fake_.stream_end_capture(stream_, &graph_).code; }

  FakeCuda fake_;
  cuda::StreamHandle stream_ = nullptr;
  void* memory_ = nullptr;
  cuda::GraphHandle graph_ = nullptr;
};

TEST_F(FakeGraphsTest, RecordsWithoutRunningAndRunsInOrder) {
  begin();
  fill(1);
  fill(2);
  ASSERT_EQ(end(), 0);
  EXPECT_EQ(first_byte(), 0);
  cuda::GraphExecHandle executable = nullptr;
  ASSERT_EQ(fake_.graph_instantiate(&executable, graph_).code, 0);
  EXPECT_EQ(fake_.graph_destroy(graph_).code, 0);
  EXPECT_NE(fake_.graph_destroy(graph_).code, 0);
  for (int i = 0; i < 2; ++i) {
    fill(3);
    EXPECT_EQ(fake_.graph_launch(executable, stream_).code, 0);
    EXPECT_EQ(first_byte(), 2);
  }
  EXPECT_EQ(fake_.graph_executable_destroy(executable).code, 0);
  EXPECT_NE(fake_.graph_launch(executable, stream_).code, 0);
}

TEST_F(FakeGraphsTest, AGraphInFlightIsNotDestroyed) {
  constexpr size_t kLarge = size_t{64} << 20;
  void* large = nullptr;
  ASSERT_EQ(fake_.allocate(&large, kLarge).code, 0);
  begin();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(fake_.fill(large, i, kLarge, stream_).code, 0);
  }
  ASSERT_EQ(end(), 0);
  cuda::GraphExecHandle executable = nullptr;
  ASSERT_EQ(fake_.graph_instantiate(&executable, graph_).code, 0);
  ASSERT_EQ(fake_.graph_launch(executable, stream_).code, 0);
  EXPECT_NE(fake_.graph_executable_destroy(executable).code, 0);
  EXPECT_EQ(fake_.stream_synchronize(stream_).code, 0);
  EXPECT_EQ(fake_.graph_executable_destroy(executable).code, 0);
}

TEST_F(FakeGraphsTest, ACallThatCannotBeCapturedEndsTheCapture) {
  std::byte pageable[kBytes] = {};
  void* more = nullptr;
  cuda::EventHandle outside = nullptr;
  ASSERT_EQ(fake_.event_create(&outside).code, 0);
  const std::pair<std::function<cuda::Status()>, int> calls[] = {
      {[&] { return fake_.stream_synchronize(stream_); }, kCaptureUnsupported},
      {[&] { return fake_.copy(pageable, memory_, kBytes, stream_); }, kCaptureUnsupported},
      {[&] { return fake_.allocate(&more, kBytes); }, kCaptureUnsupported},
      {[&] { return fake_.release(memory_); }, kCaptureUnsupported},
      {[&] { return fake_.host_register(pageable, kBytes); }, kCaptureUnsupported},
      {[&] { return fake_.stream_wait_event(stream_, outside); }, kCaptureIsolation}};
  for (const auto& [call, code] : calls) {
    begin();
    EXPECT_EQ(call().code, code);
    EXPECT_EQ(fake_.fill(memory_, 1, kBytes, stream_).code, kCaptureInvalidated);
    EXPECT_EQ(end(), kCaptureInvalidated);
    EXPECT_EQ(graph_, nullptr);
    EXPECT_EQ(first_byte(), 0) << "the stream is usable again, and nothing has run";
  }
}

TEST_F(FakeGraphsTest, OtherThreadsGoOn) {
  begin();
  std::async(std::launch::async, [&] {
    void* other = nullptr;
    EXPECT_EQ(fake_.allocate(&other, kBytes).code, 0);
    EXPECT_EQ(fake_.release(other).code, 0);
    EXPECT_EQ(fake_.stream_end_capture(stream_, &graph_).code, kCaptureWrongThread);
  }).get();
  EXPECT_EQ(end(), 0);
}

TEST_F(FakeGraphsTest, StreamsAreInCaptureOnceAndTheDefaultOneNever) {
  EXPECT_EQ(end(), kIllegalState);
  begin();
  EXPECT_EQ(fake_.stream_begin_capture(stream_).code, kIllegalState);
  EXPECT_EQ(fake_.stream_begin_capture(nullptr).code, kCaptureUnsupported);
  EXPECT_EQ(end(), 0);
}

TEST_F(FakeGraphsTest, CapturedEventsCannotBeAskedNorWaitedFor) {
  cuda::EventHandle event = nullptr;
  cuda::StreamHandle other = nullptr;
  ASSERT_EQ(fake_.event_create(&event).code, 0);
  ASSERT_EQ(fake_.stream_create(&other).code, 0);
  begin();
  EXPECT_EQ(fake_.event_record(event, stream_).code, 0);
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(fake_.event_query(event).code, kCapturedEvent);
  EXPECT_EQ(fake_.event_synchronize(event).code, kCapturedEvent);
  EXPECT_EQ(fake_.stream_wait_event(other, event).code, kCaptureIsolation);
  EXPECT_EQ(fake_.event_record(event, stream_).code, 0);
  EXPECT_EQ(fake_.event_synchronize(event).code, 0);
}

TEST_F(FakeGraphsTest, TimesLieBetweenTimedEventsThatWereReached) {
  cuda::EventHandle events[3] = {};
  ASSERT_EQ(fake_.timed_event_create(&events[0]).code, 0);
  ASSERT_EQ(fake_.timed_event_create(&events[1]).code, 0);
  ASSERT_EQ(fake_.event_create(&events[2]).code, 0);
  float milliseconds = -1;
  EXPECT_NE(fake_.event_elapsed(&milliseconds, events[0], events[1]).code, 0) << "not recorded";
  for (const cuda::EventHandle event : events) {
    EXPECT_EQ(fake_.event_record(event, stream_).code, 0);
  }
  EXPECT_EQ(fake_.stream_synchronize(stream_).code, 0);
  EXPECT_NE(fake_.event_elapsed(&milliseconds, events[0], events[2]).code, 0) << "without timing";
  EXPECT_EQ(fake_.event_elapsed(&milliseconds, events[0], events[1]).code, 0);
  EXPECT_GE(milliseconds, 0);
}

TEST_F(FakeGraphsTest, GraphsTakeDeviceMemory) {
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  begin();
  fill(1);
  fill(2);
  ASSERT_EQ(end(), 0);
  cuda::GraphExecHandle executable = nullptr;
  EXPECT_EQ(fake_.memory_info(&before, &total).code, 0);
  ASSERT_EQ(fake_.graph_instantiate(&executable, graph_).code, 0);
  EXPECT_EQ(fake_.memory_info(&after, &total).code, 0);
  EXPECT_EQ(before - after, size_t{2 * 10 << 10});
  EXPECT_EQ(fake_.graph_executable_destroy(executable).code, 0);
  EXPECT_EQ(fake_.memory_info(&after, &total).code, 0);
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace headrace::device::testing
