// The host side of the CUDA device against the fake GPU: what the suite over all devices does not
// see.
#include <future>

#include "device/cuda/cuda_matmul.h"
#include "device/cuda/cuda_stream.h"
#include "tests/device/device_suite.h"

namespace headrace::device::testing {
namespace {

class CudaTest : public ::testing::Test {
 protected:
  void start(const FakeCuda::Options& options = {}, int ordinal = 0) {
    stream_.reset();
    device_.reset();
    fake_ = std::make_shared<FakeCuda>(options);
    device_ = std::make_unique<cuda::CudaDevice>(fake_, ordinal);
    stream_ = device_->create_stream("test");
  }
  TestMatrix matrix(DType dtype, int64_t rows, int64_t columns) {
    return {*device_, *stream_, dtype, rows, columns, columns};
  }
  template <class F>
  static std::string error_of(const F& f) {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  std::shared_ptr<FakeCuda> fake_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaTest, EverythingIsGivenBack) {
  start();
  {
    const auto memory = device_->allocate(Bytes(1000));
    std::vector<std::byte> host(1000);
    const auto registration = device_->register_host(host);
    const EventRef event = stream_->record();
    stream_->synchronize();
  }
  stream_.reset();
  device_.reset();
  EXPECT_EQ(fake_->live_objects(), 0);
}

TEST_F(CudaTest, TheFakeFindsACpuThatReadsDeviceMemory) {
  FakeCuda::Options options;
  options.protects_memory = true;
  start(options);
  const auto memory = device_->allocate(Bytes(4096));
  std::vector<std::byte> seen(16, std::byte{1});
  stream_->copy_async(seen.data(), memory->data(), Bytes(16));
  stream_->synchronize();
  EXPECT_EQ(seen, std::vector<std::byte>(16));
  const auto* const first = reinterpret_cast<const volatile char*>(memory->data());
  EXPECT_DEATH(static_cast<void>(*first == 'x'), "");
}

TEST_F(CudaTest, MemoryIsZeroAtFirst) {
  start();
  const auto memory = device_->allocate(Bytes(5000));
  std::vector<std::byte> seen(5000, std::byte{1});
  stream_->copy_async(seen.data(), memory->data(), Bytes(5000));
  stream_->synchronize();
  EXPECT_EQ(seen, std::vector<std::byte>(5000));
}

TEST_F(CudaTest, RegisteredMemoryIsCopiedDirectlyAndOtherMemoryByTheStreamsThread) {
  start();
  std::vector<std::byte> host(1 << 16, std::byte{7});
  const auto memory = device_->allocate(Bytes(1 << 16));
  {
    const auto registration = device_->register_host(host);
    ASSERT_NE(registration, nullptr);
    stream_->copy_async(memory->data(), host.data() + 1, Bytes(1000));
    stream_->copy_async(host.data(), memory->data(), Bytes(1 << 16));
    stream_->synchronize();
    EXPECT_EQ(fake_->pageable_copies(), 0);
    EXPECT_EQ(host[999], std::byte{7});
    EXPECT_EQ(host[1000], std::byte{0});
  }
  // Half of it is beyond what was registered, then none is registered.
  const auto half = device_->register_host(std::span(host).first(1 << 15));
  stream_->copy_async(memory->data(), host.data(), Bytes(1 << 16));
  stream_->synchronize();
  EXPECT_EQ(fake_->pageable_copies(), 1);
}

TEST_F(CudaTest, PageableCopiesDoNotHoldUpTheCaller) {
  start();
  std::promise<void> gate;
  const auto opened = gate.get_future().share();
  const auto memory = device_->allocate(Bytes(64));
  std::vector<std::byte> host(64, std::byte{3});
  std::vector<std::byte> back(64);
  stream_->run_on_host([opened] { opened.wait(); });
  stream_->copy_async(memory->data(), host.data(), Bytes(64));
  stream_->copy_async(back.data(), memory->data(), Bytes(64));
  gate.set_value();  // would never come if a copy had waited
  stream_->synchronize();
  EXPECT_EQ(back, host);
}

TEST_F(CudaTest, RefusedRegistrationLeavesAWorkingDevice) {
  FakeCuda::Options options;
  options.can_register = false;
  start(options);
  std::vector<std::byte> host(64, std::byte{5});
  EXPECT_EQ(device_->register_host(host), nullptr);
  const auto memory = device_->allocate(Bytes(64));
  std::vector<std::byte> back(64);
  stream_->copy_async(memory->data(), host.data(), Bytes(64));
  stream_->copy_async(back.data(), memory->data(), Bytes(64));
  stream_->synchronize();
  EXPECT_EQ(back, host);
}

TEST_F(CudaTest, OutOfMemoryNamesTheGpuAndWhatIsFree) {
  FakeCuda::Options options;
  options.memory = 10 << 20;
  start(options);
  const auto some = device_->allocate(Bytes(4 << 20));
  const std::string text = error_of([&] { device_->allocate(Bytes(8 << 20)); });
  for (const char* part :
       {"GPU 0 (Fake GPU, 0000:0f:00.0)", "8.00 MiB", "are available", "headrace.device_memory"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  // Another process may have taken what was free a moment ago.
  fake_->fail_call("allocate", 0, cuda::kOutOfMemory);
  EXPECT_THROW(device_->allocate(Bytes(1)), CapacityError);
  EXPECT_NO_THROW(device_->allocate(Bytes(1)));
}

TEST_F(CudaTest, ErrorsOfCallsSayWhatWasAsked) {
  start();
  const auto memory = device_->allocate(Bytes(64));
  fake_->fail_call("fill", 0, 1);
  stream_->fill_zero_async(memory->data(), Bytes(64));
  const std::string text = error_of([&] { stream_->synchronize(); });
  for (const char* part : {"cudaMemsetAsync of 64 bytes", "\"test\"", "GPU 0",
                           "cudaErrorInvalidValue (invalid argument)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

// Whichever call fails first: it is the stream's error, and nothing hangs.
TEST_F(CudaTest, EveryCallMayFail) {
  for (const char* call : {"copy", "fill", "launch", "event_create", "event_record",
                           "event_synchronize", "stream_wait_event", "lt_choose", "lt_multiply"}) {
    SCOPED_TRACE(call);
    start();
    const auto other = device_->create_stream("other");
    TestMatrix a = matrix(DType::f32, 8, 8);
    const Bytes size =
        device_->kernels().matmul_scratch(a.view(), false, a.view(), false, a.view());
    const auto work = device_->allocate(size);
    const auto out = device_->allocate(Bytes(256));
    std::vector<std::byte> host(256);
    fake_->fail_call(call, 0, 1);
    EXPECT_THROW(
        {
          device_->kernels().add(*other, a.view(), a.view(), a.view());
          stream_->wait(other->record());
          device_->kernels().matmul(*stream_, a.view(), false, a.view(), false,
                                    {out->data(), DType::f32, 8, 8, 8}, false,
                                    {work->data(), size});
          stream_->fill_zero_async(out->data(), Bytes(256));
          stream_->copy_async(host.data(), out->data(), Bytes(256));
          other->synchronize();
          stream_->synchronize();
        },
        cuda::CudaError);
    stream_.reset();  // what is still queued ends before its memory does
  }
}

TEST_F(CudaTest, AnErrorOnTheDeviceReachesEveryStream) {
  start();
  const auto other = device_->create_stream("other");
  TestMatrix a = matrix(DType::f32, 4, 4);
  fake_->fail_on_device(0, 700);
  device_->kernels().add(*stream_, a.view(), a.view(), a.view());
  const std::string text = error_of([&] { stream_->synchronize(); });
  EXPECT_NE(text.find("cudaErrorIllegalAddress"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA_LAUNCH_BLOCKING"), std::string::npos) << text;
  EXPECT_THROW(other->synchronize(), cuda::CudaError);
}

TEST_F(CudaTest, AddressesThatAreNotTheDevicesAreRefused) {
  start();
  const auto memory = device_->allocate(Bytes(4096));
  std::vector<std::byte> host(1 << 16);
  stream_->copy_async(host.data(), memory->data() + 4000, Bytes(1 << 15));
  EXPECT_THROW(stream_->synchronize(), cuda::CudaError);
  const auto next = device_->create_stream("next");
  next->fill_zero_async(host.data(), Bytes(64));
  EXPECT_THROW(next->synchronize(), cuda::CudaError);
}

TEST_F(CudaTest, UseAfterFreeIsRefused) {
  start();
  auto memory = device_->allocate(Bytes(4096));
  std::byte* const dangling = memory->data();
  memory.reset();
  stream_->fill_zero_async(dangling, Bytes(64));
  EXPECT_THROW(stream_->synchronize(), cuda::CudaError);
}

// Handles belong to a GPU, and which one is current is a matter of the thread.
TEST_F(CudaTest, WorksOnAnotherGpuThanTheFirst) {
  FakeCuda::Options options;
  options.devices = 2;
  start(options, 1);
  Random random(3, 0);
  TestMatrix a = matrix(DType::f32, 5, 7);
  a.fill_normal(random);
  int ran = 0;
  stream_->run_on_host([&ran] { ++ran; });
  device_->kernels().add(*stream_, a.view(), a.view(), a.view());
  const double before = a(4, 6);
  a.download();
  EXPECT_EQ(a(4, 6), 2 * before);
  EXPECT_EQ(ran, 1);
  EXPECT_THROW(cuda::CudaDevice(fake_, 2), cuda::CudaError);
}

TEST_F(CudaTest, EventsDoNotBlockThePostingThread) {
  start();
  const auto other = device_->create_stream("other");
  std::promise<void> gate;
  const auto opened = gate.get_future().share();
  other->run_on_host([opened] { opened.wait(); });
  const EventRef event = other->record();
  EXPECT_FALSE(event->is_done());
  stream_->wait(event);
  const auto memory = device_->allocate(Bytes(64));
  stream_->fill_zero_async(memory->data(), Bytes(64));
  const Completion end = stream_->record_completion();
  EXPECT_FALSE(end.is_done());
  gate.set_value();
  end.wait();
  EXPECT_TRUE(event->is_done());
}

TEST_F(CudaTest, KernelsRefuseStreamsOfAnotherDevice) {
  start();
  TestMatrix a = matrix(DType::f32, 4, 4);
  const auto cpu = make_cpu_device();
  const auto stream = cpu->create_stream("cpu");
  EXPECT_THROW(device_->kernels().add(*stream, a.view(), a.view(), a.view()), InternalError);
}

TEST_F(CudaTest, AlgorithmsAreChosenOncePerProduct) {
  start();
  TestMatrix a = matrix(DType::bf16, 32, 48);
  TestMatrix b = matrix(DType::bf16, 48, 16);
  TestMatrix c = matrix(DType::f32, 32, 16);
  const Bytes size = device_->kernels().matmul_scratch(a.view(), false, b.view(), false, c.view());
  const auto work = device_->allocate(size);
  for (int i = 0; i < 5; ++i) {
    device_->kernels().matmul(*stream_, a.view(), false, b.view(), false, c.view(), i > 0,
                              {work->data(), size});
  }
  stream_->synchronize();
  EXPECT_EQ(fake_->calls("lt_choose"), 1);
  EXPECT_EQ(fake_->calls("lt_multiply"), 5);
}

TEST_F(CudaTest, ABiasIsAddedInThePassOfTheProductWhereThatWorks) {
  for (const bool has_bias : {true, false}) {
    for (const int64_t shift : {0, 1}) {
      FakeCuda::Options options;
      options.has_bias = has_bias;
      start(options);
      TestMatrix a = matrix(DType::bf16, 32, 48);
      TestMatrix c = matrix(DType::bf16, 32, 32);
      const TestMatrix bias(*device_, *stream_, DType::bf16, 1, 32, 32, shift);
      const Bytes size =
          device_->kernels().matmul_scratch(a.view(), false, a.view(), true, c.view());
      const auto work = device_->allocate(size);
      const int64_t before = fake_->calls("launch");
      device_->kernels().matmul_bias(*stream_, a.view(), false, a.view(), true, bias.data(),
                                     c.view(), {work->data(), size});
      stream_->synchronize();
      EXPECT_EQ(fake_->calls("lt_multiply"), 1);
      EXPECT_EQ(fake_->calls("launch") - before, has_bias && shift == 0 ? 0 : 1);
    }
  }
}

TEST_F(CudaTest, Tf32OnlyWhereAskedForAndOnlyForFp32) {
  start();
  TestMatrix a = matrix(DType::f32, 4, 4);
  TestMatrix half = matrix(DType::bf16, 4, 4);
  const auto product = [](const Matrix& m, bool allow) {
    return cuda::lt_product(m, false, m, true, m, 1024, allow);
  };
  EXPECT_FALSE(product(a.view(), false).allow_tf32);
  EXPECT_TRUE(product(a.view(), true).allow_tf32);
  EXPECT_FALSE(product(half.view(), true).allow_tf32);
}

/// One source, one order of operations: the CPU device's row kernels and the CUDA device's in one
/// thread per block.
TEST_F(CudaTest, RowKernelsHaveTheBitsOfTheCpu) {
  start();
  const auto cpu = make_cpu_device();
  const auto cpu_stream = cpu->create_stream("cpu");
  const auto run = [](Device& device, Stream& stream, DType dtype) {
    constexpr int64_t kRows = 19;
    constexpr int64_t kColumns = 204;
    Random random(12, 0);
    const auto made = [&](int64_t rows, int64_t columns, DType type) {
      TestMatrix m(device, stream, type, rows, columns, columns + 3);
      m.fill_normal(random);
      return m;
    };
    TestMatrix x = made(kRows, kColumns, dtype);
    TestMatrix dy = made(kRows, kColumns, dtype);
    TestMatrix y = made(kRows, kColumns, dtype);
    TestMatrix gate = made(kRows, kColumns, dtype);
    TestMatrix weight = made(1, kColumns, dtype);
    TestMatrix inv_rms = made(1, kRows, DType::f32);
    TestMatrix angles = made(kRows, 34, DType::f32);
    TestMatrix max = made(1, kRows, DType::f32);
    TestMatrix sum = made(1, kRows, DType::f32);
    TestMatrix target = made(1, kRows, DType::f32);
    TestMatrix logits = made(kRows, kColumns, DType::f32);
    const TestArray<int32_t> labels(device, stream, std::vector<int32_t>(kRows, 7));
    const CrossEntropyState state{max.data<float>(), sum.data<float>(), target.data<float>()};
    Kernels& kernels = device.kernels();
    kernels.rms_norm_forward(stream, x.view(), weight.data(), 1e-5F, y.view(),
                             inv_rms.data<float>());
    kernels.rope(stream, dy.view(), 6, 34, kRows, nullptr, angles.data<float>(), false);
    kernels.swiglu_backward(stream, dy.view(), gate.view(), x.view(), gate.view(), x.view());
    kernels.cross_entropy_start(stream, state, kRows);
    kernels.cross_entropy_tile(stream, logits.view(), 0, labels.data(), state);
    kernels.cross_entropy_gradient(stream, logits.view(), 0, labels.data(), state, 0.5F, y.view());
    std::vector<std::vector<std::byte>> bits;
    for (TestMatrix* m : {&x, &dy, &y, &gate, &inv_rms, &max, &sum, &target}) {
      bits.push_back(m->download().bits());
    }
    return bits;
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(run(*device_, *stream_, dtype), run(*cpu, *cpu_stream, dtype)) << to_string(dtype);
  }
}

/// Products for which cuBLASLt has nothing.
TEST_F(CudaTest, ThePlainKernelMultipliesWhatCublasLtCannot) {
  FakeCuda::Options options;
  options.has_algorithms = false;
  start(options);
  Random random(8, 0);
  for (int flags = 0; flags < 8; ++flags) {
    const bool transpose_a = (flags & 1) != 0;
    const bool transpose_b = (flags & 2) != 0;
    const bool accumulate = (flags & 4) != 0;
    const DType dtype = flags % 3 == 0 ? DType::bf16 : DType::f32;
    const int64_t m = 67;
    const int64_t n = 130;
    const int64_t k = 37;
    TestMatrix a = matrix(dtype, transpose_a ? k : m, transpose_a ? m : k);
    TestMatrix b = matrix(dtype, transpose_b ? n : k, transpose_b ? k : n);
    TestMatrix c = matrix(DType::f32, m, n);
    a.fill_normal(random);
    b.fill_normal(random);
    c.fill_normal(random);
    TestMatrix before = matrix(DType::f32, m, n);
    before.fill([&](int64_t i, int64_t j) { return c(i, j); });
    const Bytes size =
        device_->kernels().matmul_scratch(a.view(), transpose_a, b.view(), transpose_b, c.view());
    const auto work = device_->allocate(size);
    device_->kernels().matmul(*stream_, a.view(), transpose_a, b.view(), transpose_b, c.view(),
                              accumulate, {work->data(), size});
    c.download();
    EXPECT_EQ(fake_->calls("lt_multiply"), 0);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = accumulate ? before(i, j) : 0;
        double magnitude = std::abs(sum);
        for (int64_t x = 0; x < k; ++x) {
          const double term = (transpose_a ? a(x, i) : a(i, x)) * (transpose_b ? b(j, x) : b(x, j));
          sum += term;
          magnitude += std::abs(term);
        }
        expect_near(c(i, j), sum, static_cast<double>(k + 2) * 0x1p-24 * magnitude,
                    [&] { return fmt::format("flags {} at ({}, {})", flags, i, j); });
      }
    }
  }
}

/// A head that no tile of fits into the shared memory, as a GPU has little of it.
TEST_F(CudaTest, HeadsTooLargeForTheGpuAreRefusedWithAWayOut) {
  FakeCuda::Options options;
  options.shared_bytes = 16 << 10;
  start(options);
  const AttentionShape shape{1, 8, 1, 1, 512, 1.0F, 512, 512, 512, 512};
  TestMatrix x = matrix(DType::f32, 8, 512);
  const Bytes size = device_->kernels().attention_scratch(shape, DType::f32);
  const auto work = device_->allocate(size);
  const std::string text = error_of([&] {
    device_->kernels().attention_forward(*stream_, shape, DType::f32, x.data(), x.data(), x.data(),
                                         x.data(), x.data<float>(), {work->data(), size});
  });
  EXPECT_NE(text.find("head_dim of 512"), std::string::npos) << text;
  EXPECT_NE(text.find("headrace.compute: host"), std::string::npos) << text;
}

/// More blocks in a column than CUDA's second dimension takes. With one position the output is v.
TEST_F(CudaTest, AttentionOverMoreHeadsThanAGridHasRows) {
  start();
  constexpr int64_t kBatch = 65535 + 7;
  const AttentionShape shape{kBatch, 1, 1, 1, 4, 1.0F, 4, 4, 4, 4};
  TestMatrix x = matrix(DType::f32, kBatch, 4);
  x.fill([](int64_t r, int64_t c) { return static_cast<double>(r * 4 + c); });
  TestMatrix out = matrix(DType::f32, kBatch, 4);
  TestMatrix log_sum_exp = matrix(DType::f32, 1, kBatch);
  const Bytes size = device_->kernels().attention_scratch(shape, DType::f32);
  const auto work = device_->allocate(size);
  device_->kernels().attention_forward(*stream_, shape, DType::f32, x.data(), x.data(), x.data(),
                                       out.data(), log_sum_exp.data<float>(), {work->data(), size});
  EXPECT_EQ(out.download().bits(), x.bits());
}

/// cudaStreamSynchronize would take a core for as long as it waits.
TEST_F(CudaTest, WaitingForTheDeviceIsAsleep) {
  start();
  const auto memory = device_->allocate(Bytes(64));
  std::vector<std::byte> host(64);
  const int64_t spun = fake_->calls("stream_synchronize");
  stream_->fill_zero_async(memory->data(), Bytes(64));
  stream_->run_on_host([] {});
  stream_->copy_async(host.data(), memory->data(), Bytes(64));
  stream_->synchronize();
  stream_.reset();
  EXPECT_EQ(fake_->calls("stream_synchronize"), spun);
}

TEST(CudaBackend, FindsAGpuThatRunsItsKernels) {
  const auto fake = std::make_shared<FakeCuda>();
  const GpuSearch search = cuda::find_gpu(fake);
  ASSERT_TRUE(search.gpu) << search.refusal;
  EXPECT_EQ(search.gpu->name, "Fake GPU");
  EXPECT_EQ(fake->live_objects(), 0);
}

TEST(CudaBackend, RefusesAGpuThatItHasNoKernelsFor) {
  constexpr int kNoKernelImage = 209;
  const auto fake = std::make_shared<FakeCuda>();
  fake->fail_call("launch", 0, kNoKernelImage);
  const GpuSearch search = cuda::find_gpu(fake);
  EXPECT_FALSE(search.gpu);
  EXPECT_NE(search.refusal.find("built for other GPUs than compute capability 9.0"),
            std::string::npos)
      << search.refusal;
  EXPECT_EQ(fake->live_objects(), 0);
}

TEST(CudaBackend, SaysWhyThereIsNoGpu) {
  ASSERT_EQ(setenv("HEADRACE_CUDA_LIBRARY", "", 1), 0);
  const GpuSearch search = find_gpu();
  ASSERT_EQ(unsetenv("HEADRACE_CUDA_LIBRARY"), 0);
  EXPECT_FALSE(search.gpu);
  EXPECT_NE(search.refusal.find("HEADRACE_CUDA_LIBRARY"), std::string::npos) << search.refusal;
}

}  // namespace
}  // namespace headrace::device::testing
