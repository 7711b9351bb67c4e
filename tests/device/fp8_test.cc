// Rounding to e4m3 and products of such matrices: conversions against PyTorch's and against the
// format's definition, products against double.
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/parallel.h"
#include "tests/device/device_suite.h"

namespace headrace::device::testing {
namespace {

using nlohmann::json;

constexpr std::array<DType, 3> kSources = {DType::f32, DType::bf16, DType::f16};
constexpr uint8_t kNan = 0x7f;
constexpr uint8_t kLargest = 0x7e;

json read_golden() {
  std::ifstream file(HEADRACE_SOURCE_DIR "/tests/golden/data/fp8/conversions.json");
  return json::parse(file);
}

/// Values of all codes, by the format's definition; NaN for the two that are.
std::array<double, 256> make_values() {
  std::array<double, 256> values{};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> 3;
    const int mantissa = code & 7;
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    values[static_cast<size_t>(code)] = code == kNan ? NAN : value;
    values[static_cast<size_t>(code + 128)] = -values[static_cast<size_t>(code)];
  }
  return values;
}
const std::array<double, 256> kValues = make_values();

/// The code nearest to the value, the even one of two; the largest beyond the range.
uint8_t nearest_code(double value) {
  if (!std::isfinite(value)) {
    return std::signbit(value) ? kNan | 0x80 : kNan;
  }
  const double magnitude = std::min(std::abs(value), kValues[kLargest]);
  int best = 0;
  for (int code = 1; code <= kLargest; ++code) {
    const double distance = std::abs(kValues[static_cast<size_t>(code)] - magnitude);
    const double least = std::abs(kValues[static_cast<size_t>(best)] - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) {
      best = code;
    }
  }
  return static_cast<uint8_t>(std::signbit(value) ? best | 0x80 : best);
}

/// A matrix in e4m3 in device memory.
class TestScaled {
 public:
  TestScaled(Device& device, Stream& stream, int64_t rows, int64_t columns)
      : rows_(rows),
        columns_(columns),
        codes_(device, stream, std::vector<uint8_t>(static_cast<size_t>(rows * columns), 0xa5)),
        scale_(device, stream, {NAN}) {}
  TestScaled(Device& device, Stream& stream, int64_t rows, int64_t columns,
             std::vector<uint8_t> codes, float scale)
      : rows_(rows),
        columns_(columns),
        codes_(device, stream, std::move(codes)),
        scale_(device, stream, {scale}) {}

  ScaledMatrix view() const { return {codes_.data(), scale_.data(), rows_, columns_}; }
  const std::vector<uint8_t>& codes() { return codes_.download(); }
  float scale() { return scale_.download().front(); }
  /// What the codes stand for.
  std::vector<double> values() {
    std::vector<double> values;
    const double factor = scale();
    for (const uint8_t code : codes()) {
      values.push_back(kValues[code] * factor);
    }
    return values;
  }

 private:
  int64_t rows_;
  int64_t columns_;
  TestArray<uint8_t> codes_;
  TestArray<float> scale_;
};

class Fp8Test : public DeviceTest {
 protected:
  void SetUp() override {
    if (!GetParam().has_fp8) {
      GTEST_SKIP() << "this GPU has no fp8";
    }
  }
  TestScaled scaled(int64_t rows, int64_t columns) { return {*device_, *stream_, rows, columns}; }
  TestScaled quantized(const TestMatrix& source) {
    TestScaled target = scaled(source.rows(), source.columns());
    kernels().quantize(*stream_, source.view(), target.view(), scratch(kQuantizeScratch));
    stream_->synchronize();
    return target;
  }
  void post_product(const ScaledMatrix& a, const ScaledMatrix& b, const void* bias, const Matrix& c,
                    bool accumulate) {
    kernels().matmul_scaled(*stream_, a, b, bias, c, accumulate,
                            scratch(kernels().matmul_scaled_scratch(a, b, c)));
  }

  Random random_{21, 0};
};

/// All values of a 16-bit type at once: with infinity among them the scale is 1.
TestMatrix every_value(Device& device, Stream& stream, DType dtype) {
  TestMatrix all(device, stream, dtype, 256, 256, 256);
  all.fill([&](int64_t r, int64_t c) {
    const auto bits = static_cast<uint16_t>(r * 256 + c);
    return decode(dtype, reinterpret_cast<const std::byte*>(&bits));
  });
  return all;
}

TEST_P(Fp8Test, EveryBf16ValueIsRoundedAsPyTorchDoes) {
  TestScaled actual = quantized(every_value(*device_, *stream_, DType::bf16));
  EXPECT_EQ(actual.scale(), 1);
  const std::vector<uint8_t>& codes = actual.codes();
  const json golden = read_golden();
  const json& runs = golden.at("runs");
  size_t run = 0;
  for (size_t bits = 0; bits < 65536; ++bits) {
    if (run + 1 < runs.size() && runs[run + 1][0] == bits) {
      ++run;
    }
    // Infinity, which PyTorch makes the largest value, must stay visible; the sign of a NaN means
    // nothing.
    const bool is_finite = (bits & 0x7f80U) != 0x7f80U;
    const auto expected = runs[run][1].get<uint8_t>();
    ASSERT_EQ(is_finite ? codes[bits] : codes[bits] & 0x7fU, is_finite ? expected : kNan)
        << "bf16 value " << bits;
  }
}

TEST_P(Fp8Test, EveryF16ValueIsRoundedToTheNearest) {
  const TestMatrix all = every_value(*device_, *stream_, DType::f16);
  const std::vector<uint8_t> codes = quantized(all).codes();
  for (size_t i = 0; i < codes.size(); ++i) {
    const double value = all(static_cast<int64_t>(i) / 256, static_cast<int64_t>(i) % 256);
    const uint8_t expected = nearest_code(value);
    const bool is_nan = (expected & 0x7fU) == kNan;
    ASSERT_EQ(is_nan ? codes[i] & 0x7fU : codes[i], is_nan ? kNan : expected) << value;
  }
}

TEST_P(Fp8Test, EveryCodeHasTheValueThatPyTorchGivesIt) {
  const json values = read_golden().at("values");
  constexpr int64_t kCodes = 256;
  constexpr int64_t kColumns = 16;
  std::vector<uint8_t> a_codes(kCodes * kColumns, 0);
  for (size_t code = 0; code < kCodes; ++code) {
    a_codes[code * kColumns] = static_cast<uint8_t>(code);
  }
  std::vector<uint8_t> b_codes(16 * kColumns, 0);
  b_codes[0] = 0x38;  // 1
  TestScaled a(*device_, *stream_, kCodes, kColumns, a_codes, 0.5F);
  TestScaled b(*device_, *stream_, 16, kColumns, b_codes, 4);
  TestMatrix c = matrix(DType::f32, kCodes, 16);
  post_product(a.view(), b.view(), nullptr, c.view(), false);
  c.download();
  for (size_t code = 0; code < kCodes; ++code) {
    const double actual = c(static_cast<int64_t>(code), 0);
    if (values[code].is_null()) {
      EXPECT_TRUE(std::isnan(actual)) << code;
    } else {
      EXPECT_EQ(actual, 2 * values[code].get<double>()) << code;
    }
  }
}

TEST_P(Fp8Test, TheScaleIsTheLargestPowerOfTwoThatFits) {
  struct Case {
    double largest;
    double scale;
  };
  // 448 and 1.75 times a power of two fit exactly; the next bf16 value needs the next scale.
  for (const auto& [largest, scale] :
       {Case{448, 1}, Case{450, 2}, Case{224, 0.5}, Case{225, 1}, Case{1, 0x1p-8},
        Case{1.75, 0x1p-8}, Case{1.7578125, 0x1p-7}, Case{-3.0, 0x1p-7}, Case{0x1p100, 0x1p92},
        Case{0x1p-100, 0x1p-108}, Case{0x1p-130, 0x1p-126}, Case{0, 1}}) {
    TestMatrix source = matrix(DType::bf16, 32, 48);
    source.fill(
        [value = largest](auto r, auto c) { return r == 31 && c == 47 ? value : value / 1024; });
    TestScaled actual = quantized(source);
    EXPECT_EQ(actual.scale(), scale) << largest;
    EXPECT_EQ(actual.codes().back(), nearest_code(largest / scale)) << largest;
  }
}

TEST_P(Fp8Test, WhatIsNotFiniteStaysSo) {
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    TestMatrix source = matrix(DType::bf16, 16, 32);
    source.fill([&](int64_t r, int64_t c) { return r == 3 && c == 31 ? bad : 1000.0; });
    TestScaled actual = quantized(source);
    EXPECT_EQ(actual.scale(), 1);
    EXPECT_EQ(actual.codes()[3 * 32 + 31] & 0x7fU, kNan);
    EXPECT_EQ(actual.codes().front(), kLargest);
    TestMatrix c = matrix(DType::bf16, 16, 16);
    post_product(actual.view(), actual.view(), nullptr, c.view(), false);
    c.download();
    EXPECT_TRUE(std::isnan(c(3, 0)) && std::isnan(c(0, 3)));
    EXPECT_TRUE(std::isfinite(c(2, 2)));
  }
}

/// Rows apart and side by side, of few elements and of more than one part has.
TEST_P(Fp8Test, CodesAreTheNearestOnesForEveryShape) {
  struct Shape {
    int64_t rows, columns, padding;
  };
  for (const auto& [rows, columns, padding] :
       {Shape{16, 16, 0}, Shape{16, 48, 8}, Shape{272, 144, 0}, Shape{272, 144, 16},
        Shape{4112, 1040, 0}, Shape{4112, 1040, 8}}) {
    const DType dtype = padding == 8 ? DType::f16 : padding == 16 ? DType::f32 : DType::bf16;
    TestMatrix source = matrix(dtype, rows, columns, padding, padding);
    source.fill_normal(random_, 0.02);
    TestScaled actual = quantized(source);
    double largest = 0;
    for (int64_t i = 0; i < rows * columns; ++i) {
      largest = std::max(largest, std::abs(source(i / columns, i % columns)));
    }
    const double scale = actual.scale();
    EXPECT_TRUE(largest <= 448 * scale && largest > 224 * scale) << largest << " " << scale;
    const std::vector<uint8_t>& codes = actual.codes();
    // All of the small shapes, a sample of the large ones.
    const int64_t step = rows * columns > 100'000 ? 997 : 1;
    for (int64_t i = 0; i < rows * columns; i += step) {
      ASSERT_EQ(codes[static_cast<size_t>(i)],
                nearest_code(source(i / columns, i % columns) / scale));
    }
  }
}

TEST_P(Fp8Test, SameBitsForAnyThreadCountAddressAndStride) {
  std::optional<std::vector<uint8_t>> expected;
  for (const int threads : {1, 2, 3, 7}) {
    Random random(6, 0);
    const int64_t shift = threads == 1 ? 0 : 8 * threads;
    TestMatrix source = matrix(DType::bf16, 272, 912, shift, shift);
    source.fill_normal(random);
    stream_->run_on_host([threads] { set_parallel_threads(threads); });
    TestScaled actual = quantized(source);
    expected = expected ? expected : actual.codes();
    EXPECT_TRUE(actual.codes() == *expected) << threads;
  }
}

struct Product {
  int64_t m, n, k;
  DType c_dtype;
  bool has_bias;
  bool accumulate;
};

/// As of 16-bit products (matmul_test.cc): an error for each of the k terms, then the roundings of
/// c.
void expect_product(const Product& p, double sum_error, TestScaled& a, TestScaled& b,
                    const TestMatrix& bias, const TestMatrix& before, const TestMatrix& c) {
  const std::vector<double> left = a.values();
  const std::vector<double> right = b.values();
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n && !::testing::Test::HasFailure(); ++j) {
      double product = 0;
      double magnitude = 0;
      for (int64_t x = 0; x < p.k; ++x) {
        const double term =
            left[static_cast<size_t>(i * p.k + x)] * right[static_cast<size_t>(j * p.k + x)];
        product += term;
        magnitude += std::abs(term);
      }
      const double added = p.has_bias ? bias(0, j) : p.accumulate ? before(i, j) : 0;
      const double sum = product + added;
      const double bound =
          static_cast<double>(p.k + 4) * sum_error * (magnitude + std::abs(added)) +
          (p.has_bias ? rounding_error(p.c_dtype, product) : 0) + rounding_error(p.c_dtype, sum);
      expect_near(c(i, j), sum, bound, [&] {
        return fmt::format("{} x {} x {} into {} at ({}, {})", p.m, p.n, p.k, to_string(p.c_dtype),
                           i, j);
      });
    }
  }
}

TEST_P(Fp8Test, ProductsAgreeWithDouble) {
  for (const Product& p : {Product{16, 16, 16, DType::bf16, false, false},
                           Product{48, 80, 144, DType::bf16, true, false},
                           Product{48, 80, 144, DType::f16, true, false},
                           Product{64, 32, 1040, DType::f32, false, true},
                           Product{272, 304, 784, DType::bf16, false, false},
                           Product{32, 48, 64, DType::f16, false, true},
                           Product{16, 64, 32, DType::f32, false, false}}) {
    for (const DType source : kSources) {
      TestMatrix a = matrix(source, p.m, p.k);
      a.fill_normal(random_, 3);
      TestMatrix b = matrix(source, p.n, p.k, 8);
      b.fill_normal(random_, 0.02);
      TestMatrix bias = matrix(p.c_dtype, 1, p.n);
      bias.fill_normal(random_);
      TestMatrix c = matrix(p.c_dtype, p.m, p.n, 8);
      c.fill_normal(random_);
      TestMatrix before = matrix(p.c_dtype, p.m, p.n);
      before.fill([&](auto i, auto j) { return c(i, j); });
      TestScaled left = quantized(a);
      TestScaled right = quantized(b);
      post_product(left.view(), right.view(), p.has_bias ? bias.data() : nullptr, c.view(),
                   p.accumulate);
      c.download();
      expect_product(p, GetParam().fp8_sum_error, left, right, bias, before, c);
    }
  }
}

TEST_P(Fp8Test, UsesExactlyTheScratchItAsksFor) {
  TestMatrix source = matrix(DType::bf16, 32, 48);
  TestScaled a = scaled(32, 48);
  TestMatrix c = matrix(DType::bf16, 32, 32);
  const Bytes size = kernels().matmul_scaled_scratch(a.view(), a.view(), c.view());
  ASSERT_GT(size, Bytes(0));
  EXPECT_THROW(kernels().matmul_scaled(*stream_, a.view(), a.view(), nullptr, c.view(), false,
                                       scratch(size - Bytes(1))),
               InternalError);
  EXPECT_THROW(
      kernels().quantize(*stream_, source.view(), a.view(), scratch(kQuantizeScratch - Bytes(1))),
      InternalError);
}

TEST_P(Fp8Test, RefusesWhatCublasWould) {
  const auto refuses_source = [&](const Matrix& source, const ScaledMatrix& target) {
    EXPECT_THROW(kernels().quantize(*stream_, source, target, scratch(kQuantizeScratch)),
                 InternalError);
  };
  TestScaled a = scaled(32, 48);
  refuses_source(matrix(DType::bf16, 32, 32).view(), a.view());
  refuses_source(matrix(DType::bf16, 32, 48, 4).view(), a.view());
  refuses_source(matrix(DType::bf16, 32, 48, 0, 1).view(), a.view());
  refuses_source(matrix(DType::bf16, 24, 48).view(), scaled(24, 48).view());
  const auto refuses = [&](const ScaledMatrix& x, const ScaledMatrix& y, const void* bias,
                           const Matrix& c, bool accumulate) {
    EXPECT_THROW(kernels().matmul_scaled(*stream_, x, y, bias, c, accumulate, scratch(kMiB * 64)),
                 InternalError);
  };
  const TestMatrix c = matrix(DType::bf16, 32, 32);
  const TestMatrix wide = matrix(DType::f32, 32, 32);
  refuses(a.view(), scaled(32, 32).view(), nullptr, c.view(), false);
  refuses(a.view(), a.view(), nullptr, matrix(DType::bf16, 32, 32, 0, 1).view(), false);
  refuses(a.view(), a.view(), c.data(), c.view(), true);
  refuses(a.view(), a.view(), c.data(), wide.view(), false);
  ScaledMatrix shifted = a.view();
  shifted.codes = static_cast<uint8_t*>(shifted.codes) + 1;
  refuses(shifted, a.view(), nullptr, c.view(), false);
}

HEADRACE_DEVICE_SUITE(Fp8Test);

/// A product in e4m3 on a fake GPU.
class CudaFp8 : public ::testing::Test {
 protected:
  void start(const FakeCuda::Options& options) {
    stream_.reset();
    fake_ = std::make_shared<FakeCuda>(options);
    device_ = std::make_unique<cuda::CudaDevice>(fake_, 0);
    stream_ = device_->create_stream("test");
  }

  /// Of 32 x 48 numbers with itself, and a bias, in bf16.
  std::vector<double> product() {
    Random random(3, 0);
    TestMatrix source(*device_, *stream_, DType::bf16, 32, 48, 48);
    source.fill_normal(random);
    TestMatrix bias(*device_, *stream_, DType::bf16, 1, 32, 32);
    bias.fill_normal(random);
    TestMatrix c(*device_, *stream_, DType::bf16, 32, 32, 32);
    const TestScaled a(*device_, *stream_, 32, 48);
    Kernels& kernels = device_->kernels();
    const auto memory = device_->allocate(kQuantizeScratch);
    kernels.quantize(*stream_, source.view(), a.view(), {memory->data(), memory->size()});
    const Bytes size = kernels.matmul_scaled_scratch(a.view(), a.view(), c.view());
    const auto work = device_->allocate(size);
    kernels.matmul_scaled(*stream_, a.view(), a.view(), bias.data(), c.view(), false,
                          {work->data(), size});
    c.download();
    std::vector<double> values;
    for (int64_t i = 0; i < c.rows() * c.columns(); ++i) {
      values.push_back(c(i / c.columns(), i % c.columns()));
    }
    return values;
  }

  std::shared_ptr<FakeCuda> fake_;
  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaFp8, ABiasThatTheProductCannotAddIsAddedAfterIt) {
  FakeCuda::Options options;
  start(options);
  const std::vector<double> expected = product();
  const int64_t launches = fake_->calls("launch");
  options.has_bias = false;
  start(options);
  const std::vector<double> actual = product();
  EXPECT_EQ(fake_->calls("launch"), launches + 1);
  for (size_t i = 0; i < expected.size(); ++i) {
    // The product is rounded before the bias, which is below 4, is added.
    EXPECT_NEAR(actual[i], expected[i], 0x1p-8 * (3 * std::abs(expected[i]) + 4));
  }
}

TEST_F(CudaFp8, ACardWithoutItIsAnErrorWithTheKey) {
  for (const int capability : {80, 86, 89, 90, 100, 120}) {
    FakeCuda::Options options;
    options.compute_capability = capability;
    const bool has_fp8 = capability >= 89;
    EXPECT_EQ(cuda::find_gpu(std::make_shared<FakeCuda>(options)).gpu->has_fp8, has_fp8);
    start(options);
    try {
      product();
      EXPECT_TRUE(has_fp8) << capability;
    } catch (const cuda::CudaError& error) {
      EXPECT_FALSE(has_fp8) << capability;
      EXPECT_NE(std::string(error.what()).find("leave headrace.lossy_fp8_forward out"),
                std::string::npos)
          << error.what();
    }
  }
}

/// The fake refuses what cuBLASLt's documentation rules out, so that it cannot be asked for unseen.
TEST_F(CudaFp8, TheFakeAsksForTheLayoutOfTheLibrary) {
  start({});
  const Matrix a{reinterpret_cast<void*>(uintptr_t{4096}), DType::u8, 32, 64, 64};
  const Matrix c{reinterpret_cast<void*>(uintptr_t{4096}), DType::bf16, 32, 32, 32};
  const cuda::LtProduct fit = cuda::lt_product(a, false, a, true, c, 1024, false);
  const auto status = [&](const auto& change) {
    cuda::LtProduct product = fit;
    change(product);
    cuda::LtAlgorithm algorithm;
    return fake_->lt_choose(product, &algorithm).code;
  };
  EXPECT_EQ(status([](auto&) {}), 0);
  EXPECT_EQ(status([](auto& p) { p.transpose_a = false; }), cuda::kLtNotSupported);
  EXPECT_EQ(status([](auto& p) { p.transpose_b = true; }), cuda::kLtNotSupported);
  EXPECT_EQ(status([](auto& p) { p.a_rows = p.b_rows = 56; }), cuda::kLtNotSupported);
  EXPECT_EQ(status([](auto& p) { p.ldc = 36; }), cuda::kLtNotSupported);
  EXPECT_EQ(status([](auto& p) { p.b_alignment = 8; }), cuda::kLtNotSupported);
  EXPECT_EQ(status([](auto& p) {
              p.has_bias = true;
              p.c_type = DType::f32;
            }),
            cuda::kLtNotSupported);
}

}  // namespace
}  // namespace headrace::device::testing
