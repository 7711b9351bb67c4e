#include "base/parallel.h"
#include "tests/device/attention_suite.h"
#include "tests/fake_cuda/fake_cudnn.h"

namespace headrace::device::testing {
namespace {

TEST_P(AttentionTest, SmallShapes) {
  uint64_t seed = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    check({1, 1, 1, 1, 16, dtype}, ++seed);
    check({2, 7, 4, 2, 8, dtype, 5, 1}, ++seed);
    check({3, 17, 3, 1, 20, dtype, 1, 3}, ++seed);
    check({1, 33, 6, 6, 64, dtype, 8}, ++seed);
  }
}

TEST_P(AttentionTest, SeveralTiles) {
  check({1, 129, 3, 1, 24, DType::f32, 3}, 20);
  check({1, 150, 9, 3, 64, DType::bf16}, 21);
  check({2, 300, 2, 2, 16, DType::f32}, 22);
  check({1, 261, 4, 1, 128, DType::f16}, 23);
  check({9, 140, 4, 2, 16, DType::bf16, 2, 1}, 24);
}

TEST_P(AttentionTest, EmptyBatchAndSequence) {
  check({0, 5, 2, 1, 16}, 30);
  check({2, 0, 2, 1, 16}, 31);
}

// Scores of +-200: a softmax without its maximum taken off would overflow.
TEST_P(AttentionTest, LargeScores) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Case c{1, 70, 2, 1, 16, dtype};
    Operands o(*device_, *stream_, c);
    Random random(40, 0);
    o.fill(random);
    o.q.fill([&](int64_t r, int64_t x) { return 30 * o.q(r, x); });
    o.k.fill([&](int64_t r, int64_t x) { return 5 * o.k(r, x); });
    run(c, o);
    check_forward(c, o, Oracle(c, o.shape().scale, o.q, o.k));
  }
}

/// sum(out * weight) by the oracle, in double.
double loss_of(const Case& c, const Operands& o) {
  const Oracle oracle(c, o.shape().scale, o.q, o.k);
  double loss = 0;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.q_heads; ++h) {
      for (int64_t i = 0; i < c.seq; ++i) {
        double log_sum_exp = 0;
        const auto p = oracle.probabilities(b, h, i, &log_sum_exp);
        for (int64_t x = 0; x < c.head_dim; ++x) {
          double out = 0;
          for (int64_t j = 0; j <= i; ++j) {
            out += p[static_cast<size_t>(j)] * oracle.key(o.v, b, h, j, x);
          }
          loss += out * oracle.query(o.dout, b, h, i, x);
        }
      }
    }
  }
  return loss;
}

TEST_P(AttentionTest, GradientsAgreeWithFiniteDifferences) {
  const Case c{2, 19, 4, 2, 4, DType::f32, 1};
  Operands o(*device_, *stream_, c);
  Random random(50, 0);
  o.fill(random);
  run(c, o);
  const auto check_some = [&](TestMatrix& input, const TestMatrix& gradient, const char* name) {
    for (int sample = 0; sample < 40; ++sample) {
      const auto r = static_cast<int64_t>(random.below(static_cast<uint64_t>(input.rows())));
      const auto x = static_cast<int64_t>(random.below(static_cast<uint64_t>(input.columns())));
      const double original = input(r, x);
      // The step as fp32 has it, since inputs are stored so.
      const auto moved = [&](double step) {
        input.fill([&](int64_t row, int64_t column) {
          return row == r && column == x ? original + step : input(row, column);
        });
        return loss_of(c, o);
      };
      constexpr double kStep = 0x1p-10;
      const double up = moved(kStep);
      const double at_up = input(r, x);
      const double down = moved(-kStep);
      const double at_down = input(r, x);
      moved(0);
      const double slope = (up - down) / (at_up - at_down);
      expect_near(gradient(r, x), slope, 2e-5 * (1 + std::abs(slope)),
                  [&] { return fmt::format("{} at ({}, {})", name, r, x); });
    }
  };
  check_some(o.q, o.dq, "dq");
  check_some(o.k, o.dk, "dk");
  check_some(o.v, o.dv, "dv");
}

TEST_P(AttentionTest, SameBitsForAnyThreadCountAndAddress) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<std::vector<std::byte>> expected;
    for (const int threads : {1, 2, 3, 7}) {
      const int64_t shift = threads == 1 ? 0 : threads * GetParam().attention_alignment;
      const Case c{1, 201, 6, 2, 32, dtype, shift, shift};
      Operands o(*device_, *stream_, c);
      Random random(60, 0);
      o.fill(random);
      stream_->run_on_host([threads] { set_parallel_threads(threads); });
      run(c, o);
      const std::vector<std::vector<std::byte>> bits = {o.out.bits(), o.log_sum_exp.bits(),
                                                        o.dq.bits(), o.dk.bits(), o.dv.bits()};
      expected = expected.empty() ? bits : expected;
      EXPECT_TRUE(bits == expected) << threads << " threads, " << c.describe();
    }
  }
}

TEST_P(AttentionTest, NanReachesEveryLaterPosition) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Case c{1, 150, 2, 1, 16, dtype};
    Operands o(*device_, *stream_, c);
    Random random(70, 0);
    o.fill(random);
    o.k.fill([&](int64_t r, int64_t x) { return r == 140 && x == 3 ? NAN : o.k(r, x); });
    run(c, o);
    for (int64_t i = 0; i < c.seq; ++i) {
      EXPECT_EQ(std::isnan(o.out(i, 0)), i >= 140)
          << "position " << i << " in " << to_string(dtype);
    }
  }
}

TEST_P(AttentionTest, ScratchIsLinearInTheSequence) {
  const auto scratch_for = [&](int64_t seq) {
    const AttentionShape shape{8, seq, 16, 16, 64, 0.125F, 1024, 1024, 1024, 1024};
    return kernels().attention_scratch(shape, DType::bf16).count();
  };
  EXPECT_LE(scratch_for(8192), 2 * scratch_for(4096));
}

TEST_P(AttentionTest, RefusesBrokenShapes) {
  const Case c{1, 8, 4, 2, 16};
  Operands o(*device_, *stream_, c);
  AttentionShape uneven = o.shape();
  uneven.kv_heads = 3;
  EXPECT_THROW(kernels().attention_scratch(uneven, c.dtype), InternalError);
  AttentionShape narrow = o.shape();
  narrow.q_stride = 63;
  EXPECT_THROW(kernels().attention_scratch(narrow, c.dtype), InternalError);
  EXPECT_THROW(kernels().attention_scratch(o.shape(), DType::i32), InternalError);
  const Bytes size = kernels().attention_scratch(o.shape(), c.dtype);
  EXPECT_THROW(kernels().attention_forward(*stream_, o.shape(), c.dtype, o.q.data(), o.k.data(),
                                           o.v.data(), o.out.data(), o.log_sum_exp.data<float>(),
                                           scratch(size - Bytes(1))),
               InternalError);
}

// FlashTest has the same kernels in graphs.
HEADRACE_DEVICE_SUITE_OVER(AttentionTest, devices_but_emulated_graphs());

/// Where cuDNN computes what it can: the fake GPU, and the real one.
std::vector<DeviceFactory> cudnn_devices() {
  GpuOptions how;
  how.attention = AttentionChoice::cudnn;
  const auto make_fake = [how]() -> std::unique_ptr<Device> {
    const auto gpu = std::make_shared<FakeCuda>();
    return std::make_unique<cuda::CudaDevice>(
        gpu, 0, how, cuda::open_cufile_library,
        [gpu](std::string&) { return std::make_shared<FakeCudnn>(gpu); });
  };
  constexpr int64_t kAlignment = 8;  // of 2 bytes, in what it takes
  std::vector<DeviceFactory> devices = {
      {.name = "fake_cudnn", .make = make_fake, .attention_alignment = kAlignment}};
  if (const GpuSearch search = headrace::test::find_gpu_for_tests(); search.gpu) {
    devices.push_back({.name = "gpu_cudnn",
                       .make = [found = *search.gpu, how] { return found.make_device(how); },
                       .attention_alignment = kAlignment});
  }
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Cudnn, AttentionTest, ::testing::ValuesIn(cudnn_devices()),
                         [](const auto& made) { return made.param.name; });

}  // namespace
}  // namespace headrace::device::testing
