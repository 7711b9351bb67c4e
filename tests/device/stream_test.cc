#include <atomic>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "device/limited_stream.h"
#include "tests/device/device_suite.h"

namespace headrace::device::testing {
namespace {

class StreamTest : public DeviceTest {
 protected:
  /// A task that ends when `gate` opens, so that a stream is provably busy.
  static std::function<void()> wait_for(const std::shared_future<void>& gate) {
    return [gate] { gate.wait(); };
  }
};

TEST_P(StreamTest, RunsWorkInOrderAndNotInTheCaller) {
  std::vector<int> order;
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 100; ++i) {
    stream_->run_on_host([&order, caller, i] {
      EXPECT_NE(std::this_thread::get_id(), caller);
      order.push_back(i);
    });
  }
  stream_->synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(StreamTest, PostingDoesNotWait) {
  std::promise<void> gate;
  bool ran = false;
  stream_->run_on_host(wait_for(gate.get_future().share()));
  stream_->run_on_host([&ran] { ran = true; });
  const EventRef event = stream_->record();
  const Completion completion = stream_->record_completion();
  EXPECT_FALSE(event->is_done());
  EXPECT_FALSE(completion.is_done());
  gate.set_value();
  event->wait();
  completion.wait();
  EXPECT_TRUE(event->is_done());
  EXPECT_TRUE(ran);
}

TEST_P(StreamTest, StreamsRunSideBySide) {
  const auto other = device_->create_stream("other");
  std::promise<void> gate;
  stream_->run_on_host(wait_for(gate.get_future().share()));
  // Only the other stream can let this one go on.
  other->run_on_host([&gate] { gate.set_value(); });
  stream_->synchronize();
}

TEST_P(StreamTest, WaitOrdersWorkOfTwoStreams) {
  const auto other = device_->create_stream("other");
  std::promise<void> gate;
  int value = 0;
  other->run_on_host(wait_for(gate.get_future().share()));
  other->run_on_host([&value] { value = 1; });
  stream_->wait(other->record());
  int seen = -1;
  stream_->run_on_host([&value, &seen] { seen = value; });
  gate.set_value();
  stream_->synchronize();
  EXPECT_EQ(seen, 1);
}

TEST_P(StreamTest, PingPongOverEvents) {
  const auto other = device_->create_stream("other");
  int64_t value = 0;
  for (int i = 0; i < 200; ++i) {
    Stream& from = i % 2 == 0 ? *stream_ : *other;
    Stream& to = i % 2 == 0 ? *other : *stream_;
    from.run_on_host([&value, i] { value = value * 3 % 1000003 + i; });
    to.wait(from.record());
  }
  stream_->synchronize();
  other->synchronize();
  int64_t expected = 0;
  for (int i = 0; i < 200; ++i) {
    expected = expected * 3 % 1000003 + i;
  }
  EXPECT_EQ(value, expected);
}

TEST_P(StreamTest, EventMarksOnlyWhatWasPostedBefore) {
  std::promise<void> gate;
  const EventRef event = stream_->record();
  stream_->run_on_host(wait_for(gate.get_future().share()));
  event->wait();
  EXPECT_TRUE(event->is_done());
  gate.set_value();
}

TEST_P(StreamTest, FirstErrorStopsTheStream) {
  const EventRef before = stream_->record();
  stream_->run_on_host([] { throw InputError("the first"); });
  bool ran = false;
  stream_->run_on_host([&ran] { ran = true; });
  stream_->run_on_host([] { throw InputError("the second"); });
  const EventRef after = stream_->record();
  const auto expect_first = [](const auto& action) {
    try {
      action();
      FAIL() << "no error";
    } catch (const InputError& error) {
      EXPECT_STREQ(error.what(), "the first");
    }
  };
  EXPECT_NO_THROW(before->wait());
  expect_first([&] { after->wait(); });
  expect_first([&] { after->wait(); });
  expect_first([&] { stream_->record_completion().wait(); });
  expect_first([&] { stream_->synchronize(); });
  EXPECT_TRUE(after->is_done());
  EXPECT_FALSE(ran);
}

TEST_P(StreamTest, CompletionCarriesTheError) {
  stream_->run_on_host([] { throw std::runtime_error("broken"); });
  std::promise<std::exception_ptr> end;
  stream_->record_completion().on_done(
      [&end](std::exception_ptr error) { end.set_value(std::move(error)); });
  EXPECT_THROW(std::rethrow_exception(end.get_future().get()), std::runtime_error);
}

TEST_P(StreamTest, WaitingForAFailedEventFailsTheWaiter) {
  const auto other = device_->create_stream("other");
  other->run_on_host([] { throw InputError("no data"); });
  stream_->wait(other->record());
  bool ran = false;
  stream_->run_on_host([&ran] { ran = true; });
  EXPECT_THROW(stream_->synchronize(), InputError);
  EXPECT_FALSE(ran);
}

TEST_P(StreamTest, DestructorRunsWhatIsQueuedAndDropsErrors) {
  std::atomic<int> runs = 0;
  EventRef event;
  {
    const auto other = device_->create_stream("other");
    for (int i = 0; i < 10; ++i) {
      other->run_on_host([&runs] { ++runs; });
    }
    event = other->record();
    other->run_on_host([] { throw InputError("nobody asks"); });
  }
  EXPECT_EQ(runs, 10);
  EXPECT_TRUE(event->is_done());
}

TEST_P(StreamTest, CopiesAndFillsKeepTheirOrder) {
  constexpr int64_t kCount = 100003;
  const Bytes size(kCount * 4);
  const auto memory = device_->allocate(size);
  const auto second = device_->allocate(size);
  std::vector<int32_t> source(kCount);
  std::iota(source.begin(), source.end(), 7);
  std::vector<int32_t> target(kCount, -1);
  stream_->copy_async(memory->data(), source.data(), size);
  stream_->copy_async(second->data(), memory->data(), size);
  stream_->fill_zero_async(second->data() + 4, Bytes(8));
  stream_->fill_zero_async(memory->data(), size);
  stream_->copy_async(target.data(), second->data(), size);
  stream_->synchronize();
  source[1] = 0;
  source[2] = 0;
  EXPECT_EQ(target, source);
  stream_->copy_async(target.data(), memory->data(), size);
  stream_->synchronize();
  EXPECT_EQ(target, std::vector<int32_t>(kCount, 0));
}

TEST_P(StreamTest, RefusesBadArguments) {
  std::byte byte{};
  EXPECT_THROW(stream_->copy_async(&byte, nullptr, Bytes(1)), InternalError);
  EXPECT_THROW(stream_->fill_zero_async(nullptr, Bytes(1)), InternalError);
  EXPECT_THROW(stream_->copy_async(&byte, &byte, Bytes(-1)), InternalError);
  EXPECT_THROW(stream_->wait(nullptr), InternalError);
  EXPECT_NO_THROW(stream_->copy_async(nullptr, nullptr, Bytes(0)));
  stream_->synchronize();
}

HEADRACE_DEVICE_SUITE(StreamTest);

/// The CPU with copies of a limited rate; kernels are not used.
class LimitedDevice : public Device {
 public:
  static constexpr double kRate = 200e6;

  std::string_view name() const override { return "limited"; }
  bool is_host_addressable() const override { return cpu_->is_host_addressable(); }
  std::unique_ptr<Memory> allocate(Bytes size) override { return cpu_->allocate(size); }
  std::unique_ptr<Stream> create_stream(std::string stream_name) override {
    return make_limited_stream(cpu_->create_stream(std::move(stream_name)), kRate);
  }
  Kernels& kernels() override { return cpu_->kernels(); }
  std::unique_ptr<HostRegistration> register_host(std::span<std::byte> memory) override {
    return cpu_->register_host(memory);
  }

 private:
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

INSTANTIATE_TEST_SUITE_P(Limited, StreamTest,
                         ::testing::Values(DeviceFactory{
                             "limited", [] { return std::make_unique<LimitedDevice>(); }}));

TEST(LimitedStream, CopiesEndWhenTheRateSays) {
  using Clock = std::chrono::steady_clock;
  LimitedDevice device;
  const auto stream = device.create_stream("limited");
  std::vector<std::byte> source(1 << 20);
  std::vector<std::byte> target(source.size());
  const double each = static_cast<double>(source.size()) / LimitedDevice::kRate;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  std::vector<double> ends(40);
  const Clock::time_point begin = Clock::now();
  for (double& end : ends) {
    stream->copy_async(target.data(), source.data(), Bytes(1 << 20));
    stream->record_completion().on_done(
        [&](const std::exception_ptr&) { end = seconds_since(begin); });
  }
  stream->synchronize();
  for (size_t i = 0; i < ends.size(); ++i) {
    EXPECT_GE(ends[i], static_cast<double>(i + 1) * each - 1e-6);
  }
  EXPECT_NEAR(ends.back(), static_cast<double>(ends.size()) * each, 0.05);

  // What lies between two copies, and idle time, is not made up for.
  const Clock::time_point again = Clock::now();
  stream->run_on_host([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  stream->copy_async(target.data(), source.data(), Bytes(1 << 20));
  stream->synchronize();
  EXPECT_GE(seconds_since(again), 0.05 + each - 1e-6);
}

using MemoryTest = DeviceTest;

TEST_P(MemoryTest, IsPageAlignedAndDistinct) {
  std::vector<std::unique_ptr<Memory>> blocks;
  for (const int64_t size : {1, 4095, 4096, 4097, 3 << 20}) {
    blocks.push_back(device_->allocate(Bytes(size)));
    EXPECT_EQ(blocks.back()->size(), Bytes(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()->data()) % 4096, 0U);
    std::vector<std::byte> pattern(static_cast<size_t>(size), std::byte(blocks.size()));
    stream_->copy_async(blocks.back()->data(), pattern.data(), Bytes(size));
    stream_->synchronize();
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::vector<std::byte> seen(static_cast<size_t>(blocks[i]->size().count()));
    stream_->copy_async(seen.data(), blocks[i]->data(), blocks[i]->size());
    stream_->synchronize();
    EXPECT_EQ(seen, std::vector<std::byte>(seen.size(), std::byte(i + 1)));
  }
}

TEST_P(MemoryTest, NothingIsAllowed) {
  EXPECT_EQ(device_->allocate(Bytes(0))->size(), Bytes(0));
}

TEST_P(MemoryTest, TooMuchIsACapacityErrorThatSaysWhatIsFree) {
  try {
    device_->allocate(kGiB * (int64_t{1} << 20));
    FAIL() << "a PiB was allocated";
  } catch (const CapacityError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("1.00 PiB"), std::string::npos) << text;
    EXPECT_NE(text.find("available"), std::string::npos) << text;
  }
}

TEST_P(MemoryTest, HostAddressableMemoryIsTheCpus) {
  if (!device_->is_host_addressable()) {
    GTEST_SKIP() << device_->name() << " memory cannot be addressed by the CPU";
  }
  const auto memory = device_->allocate(Bytes(64));
  memory->data()[63] = std::byte{9};
  std::byte seen{};
  stream_->copy_async(&seen, memory->data() + 63, Bytes(1));
  stream_->synchronize();
  EXPECT_EQ(seen, std::byte{9});
}

HEADRACE_DEVICE_SUITE(MemoryTest);

}  // namespace
}  // namespace headrace::device::testing
