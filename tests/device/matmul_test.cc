#include "device/cpu/matmul.h"

#include <array>

#include "base/parallel.h"
#include "tests/device/device_suite.h"

namespace headrace::device::testing {
namespace {

struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  DType dtype = DType::f32;
  DType c_dtype = DType::f32;
  int64_t padding = 0;  ///< of the strides
  int64_t shift = 0;    ///< of the addresses, elements

  std::string describe() const {
    return fmt::format("{} x {} x {} ta {} tb {} acc {} {} -> {} padding {} shift {}", m, n, k,
                       transpose_a, transpose_b, accumulate, to_string(dtype), to_string(c_dtype),
                       padding, shift);
  }
};

/// Compares with sums in double. An fp32 sum of k products in any order errs by at most
/// k * 2^-24 * sum |a b|; then comes one rounding to c's dtype.
void expect_product(const Product& p, const TestMatrix& a, const TestMatrix& b,
                    const TestMatrix& c_before, const TestMatrix& c) {
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = p.accumulate ? c_before(i, j) : 0.0;
      double magnitude = std::abs(sum);
      for (int64_t x = 0; x < p.k; ++x) {
        const double term =
            (p.transpose_a ? a(x, i) : a(i, x)) * (p.transpose_b ? b(j, x) : b(x, j));
        sum += term;
        magnitude += std::abs(term);
      }
      const double bound =
          static_cast<double>(p.k + 2) * 0x1p-24 * magnitude + rounding_error(p.c_dtype, sum);
      expect_near(c(i, j), sum, bound,
                  [&] { return fmt::format("{} at ({}, {})", p.describe(), i, j); });
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
  }
}

/// As expect_product(), of a b^T; a bias is added to what may have been rounded to the dtype.
void expect_product_and_bias(const Product& p, const TestMatrix& a, const TestMatrix& b,
                             const TestMatrix& bias, const TestMatrix& c) {
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double product = 0;
      double magnitude = std::abs(bias(0, j));
      for (int64_t x = 0; x < p.k; ++x) {
        product += a(i, x) * b(j, x);
        magnitude += std::abs(a(i, x) * b(j, x));
      }
      const double sum = product + bias(0, j);
      const double bound = static_cast<double>(p.k + 3) * 0x1p-24 * magnitude +
                           rounding_error(p.dtype, product) + rounding_error(p.dtype, sum);
      expect_near(c(i, j), sum, bound,
                  [&] { return fmt::format("{} at ({}, {})", p.describe(), i, j); });
    }
  }
}

class MatmulTest : public DeviceTest {
 protected:
  TestMatrix operand(const Product& p, bool transposed, int64_t rows, int64_t columns) {
    return matrix(p.dtype, transposed ? columns : rows, transposed ? rows : columns, p.padding,
                  p.shift);
  }

  void post(const Product& p, const TestMatrix& a, const TestMatrix& b, const TestMatrix& c) {
    const Bytes size =
        kernels().matmul_scratch(a.view(), p.transpose_a, b.view(), p.transpose_b, c.view());
    kernels().matmul(*stream_, a.view(), p.transpose_a, b.view(), p.transpose_b, c.view(),
                     p.accumulate, scratch(size));
  }

  void check(const Product& p, Random& random) {
    TestMatrix a = operand(p, p.transpose_a, p.m, p.k);
    TestMatrix b = operand(p, p.transpose_b, p.k, p.n);
    TestMatrix c = matrix(p.c_dtype, p.m, p.n, p.padding, p.shift);
    TestMatrix c_before = matrix(p.c_dtype, p.m, p.n, p.padding, p.shift);
    a.fill_normal(random);
    b.fill_normal(random);
    c.fill_normal(random);
    c_before.fill([&](int64_t i, int64_t j) { return c(i, j); });
    post(p, a, b, c);
    c.download();
    expect_product(p, a, b, c_before, c);
  }
};

struct DTypes {
  DType operand;
  DType result;
};
constexpr std::array<DTypes, 5> kDTypes = {DTypes{DType::f32, DType::f32},
                                           {DType::bf16, DType::bf16},
                                           {DType::bf16, DType::f32},
                                           {DType::f16, DType::f16},
                                           {DType::f16, DType::f32}};

Product random_product(Random& random, const std::vector<int64_t>& sizes, int flags) {
  const auto pick = [&] { return sizes[random.below(sizes.size())]; };
  Product p{pick(), pick(), pick()};
  p.transpose_a = (flags & 1) != 0;
  p.transpose_b = (flags & 2) != 0;
  p.accumulate = (flags & 4) != 0;
  p.padding = static_cast<int64_t>(random.below(4));
  p.shift = static_cast<int64_t>(random.below(3));
  const DTypes dtypes = kDTypes[random.below(kDTypes.size())];
  p.dtype = dtypes.operand;
  p.c_dtype = dtypes.result;
  return p;
}

TEST_P(MatmulTest, AgreesWithDoubleOnRandomShapes) {
  Random random(1, 0);
  const std::vector<int64_t> sizes = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 129};
  for (int round = 0; round < 240 && !HasFailure(); ++round) {
    check(random_product(random, sizes, round % 8), random);
  }
}

TEST_P(MatmulTest, AgreesWithDoubleWhereTilesAndChunksAreSeveral) {
  Random random(2, 0);
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    Product p = random_product(random, {1, 70, 260, 300}, round % 8);
    p.k = round % 2 == 0 ? 1601 : 770;
    const DTypes dtypes = kDTypes[static_cast<size_t>(round) % kDTypes.size()];
    p.dtype = dtypes.operand;
    p.c_dtype = dtypes.result;
    check(p, random);
  }
}

TEST_P(MatmulTest, LargeGridOfTiles) {
  Random random(3, 0);
  check({1030, 1100, 5, false, true, true, DType::f32, DType::f32, 3, 1}, random);
  check({1030, 1100, 5, true, false, false, DType::bf16, DType::bf16, 0, 0}, random);
}

TEST_P(MatmulTest, EmptyProducts) {
  Random random(4, 0);
  for (const DTypes& dtypes : kDTypes) {
    check({0, 5, 3, false, false, false, dtypes.operand, dtypes.result}, random);
    check({5, 0, 3, false, false, false, dtypes.operand, dtypes.result}, random);
    check({5, 4, 0, false, true, false, dtypes.operand, dtypes.result, 2, 1}, random);
    check({5, 4, 0, true, false, true, dtypes.operand, dtypes.result}, random);
  }
}

TEST_P(MatmulTest, ABiasIsAddedToEveryRow) {
  Random random(6, 0);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t depth : {0, 37, 70}) {
      // On and off 16 bytes: in the product's pass or after it.
      for (const int64_t shift : {0, 1}) {
        const Product p{21, 40, depth, false, true, false, dtype, dtype, shift, shift};
        TestMatrix a = operand(p, false, p.m, p.k);
        TestMatrix b = operand(p, true, p.k, p.n);
        TestMatrix bias = matrix(dtype, 1, p.n, 0, shift);
        TestMatrix c = matrix(dtype, p.m, p.n, p.padding, p.shift);
        a.fill_normal(random);
        b.fill_normal(random);
        bias.fill_normal(random);
        const Bytes size = kernels().matmul_scratch(a.view(), false, b.view(), true, c.view());
        kernels().matmul_bias(*stream_, a.view(), false, b.view(), true, bias.data(), c.view(),
                              scratch(size));
        c.download();
        expect_product_and_bias(p, a, b, bias, c);
      }
    }
  }
}

TEST_P(MatmulTest, NanAndInfinityStayInTheirRows) {
  Random random(5, 0);
  for (const DTypes& dtypes : kDTypes) {
    const Product p{21, 19, 37, false, false, false, dtypes.operand, dtypes.result};
    TestMatrix a = operand(p, false, p.m, p.k);
    TestMatrix b = operand(p, false, p.k, p.n);
    TestMatrix c = matrix(p.c_dtype, p.m, p.n);
    a.fill_normal(random);
    b.fill([&](int64_t, int64_t) { return 0.5 + random.below(8); });
    a.fill([&](int64_t r, int64_t x) {
      return r == 20 && x == 36 ? NAN : r == 3 && x == 0 ? INFINITY : a(r, x);
    });
    post(p, a, b, c);
    c.download();
    for (int64_t j = 0; j < p.n; ++j) {
      EXPECT_TRUE(std::isnan(c(20, j)));
      EXPECT_EQ(c(3, j), INFINITY);
      EXPECT_TRUE(std::isfinite(c(2, j)) && std::isfinite(c(4, j)) && std::isfinite(c(19, j)));
    }
  }
}

// fp32 products of fp32 operands: with bf16 inside, 1 + 2^-12 would be 1.
TEST_P(MatmulTest, Fp32OperandsKeepTheirBits) {
  const Product p{64, 64, 64};
  TestMatrix a = operand(p, false, p.m, p.k);
  TestMatrix b = operand(p, false, p.k, p.n);
  TestMatrix c = matrix(p.c_dtype, p.m, p.n);
  a.fill([](int64_t r, int64_t x) { return r == x ? 1 + 0x1p-23 * static_cast<double>(r) : 0; });
  b.fill([](int64_t x, int64_t j) { return x == j ? 1.0 : 0.0; });
  post(p, a, b, c);
  c.download();
  for (int64_t i = 0; i < p.m; ++i) {
    EXPECT_EQ(c(i, i), 1 + 0x1p-23 * static_cast<double>(i));
  }
}

TEST_P(MatmulTest, SameBitsForAnyThreadCountAddressAndStride) {
  for (const DTypes& dtypes : kDTypes) {
    std::vector<std::byte> expected;
    for (const int threads : {1, 2, 3, 7}) {
      Random random(6, 0);
      Product p{150, 333, 900, false, true, true, dtypes.operand, dtypes.result};
      const int64_t unit =
          std::max<int64_t>(1, GetParam().product_alignment / size_of(dtypes.operand).count());
      p.padding = threads == 1 || unit > 1 ? 0 : threads;  // cuBLASLt chooses by the stride too
      p.shift = threads == 1 ? 0 : threads * unit;
      TestMatrix a = operand(p, false, p.m, p.k);
      TestMatrix b = operand(p, true, p.k, p.n);
      TestMatrix c = matrix(p.c_dtype, p.m, p.n, p.padding, p.shift);
      a.fill_normal(random);
      b.fill_normal(random);
      c.fill_normal(random);
      stream_->run_on_host([threads] { set_parallel_threads(threads); });
      post(p, a, b, c);
      const std::vector<std::byte> bits = c.download().bits();
      expected = expected.empty() ? bits : expected;
      EXPECT_TRUE(bits == expected) << threads << " threads, " << p.describe();
    }
  }
}

TEST_P(MatmulTest, UsesExactlyTheScratchItAsksFor) {
  const Product p{70, 90, 50, false, false, false, DType::f16, DType::f16};
  TestMatrix a = operand(p, false, p.m, p.k);
  TestMatrix b = operand(p, false, p.k, p.n);
  TestMatrix c = matrix(p.c_dtype, p.m, p.n);
  const Bytes size = kernels().matmul_scratch(a.view(), false, b.view(), false, c.view());
  ASSERT_GT(size, Bytes(0));
  EXPECT_THROW(kernels().matmul(*stream_, a.view(), false, b.view(), false, c.view(), false,
                                scratch(size - Bytes(1))),
               InternalError);
}

TEST_P(MatmulTest, RefusesShapesThatDoNotFit) {
  TestMatrix a = matrix(DType::f32, 4, 5);
  TestMatrix b = matrix(DType::f32, 6, 3);
  TestMatrix c = matrix(DType::f32, 4, 3);
  TestMatrix half = matrix(DType::bf16, 5, 3);
  const auto ask = [&](const Matrix& x, const Matrix& y, const Matrix& z) {
    return kernels().matmul_scratch(x, false, y, false, z);
  };
  EXPECT_THROW(ask(a.view(), b.view(), c.view()), InternalError);
  EXPECT_THROW(ask(a.view(), half.view(), c.view()), InternalError);
  Matrix narrow = a.view();
  narrow.stride = 4;
  EXPECT_THROW(ask(narrow, matrix(DType::f32, 5, 3).view(), c.view()), InternalError);
}

HEADRACE_DEVICE_SUITE(MatmulTest);

// Whichever of its two ways the CPU device takes for bf16 here, both must be right.
TEST(CpuMatmul, Bf16WithAndWithoutItsInstructions) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream("test");
  cpu::TileProductCache products;
  for (const bool native : {false, true}) {
    if (native && !cpu::has_bf16_instructions()) {
      GTEST_SKIP() << "this CPU has no bf16 instructions: only the fp32 way was tested";
    }
    const cpu::CpuMatmul matmul(products, native);
    Random random(7, 0);
    for (int flags = 0; flags < 8; ++flags) {
      Product p{70,
                45,
                811,
                (flags & 1) != 0,
                (flags & 2) != 0,
                (flags & 4) != 0,
                DType::bf16,
                flags % 3 == 0 ? DType::f32 : DType::bf16};
      TestMatrix a(*device, *stream, p.dtype, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k,
                   (p.transpose_a ? p.m : p.k) + 1);
      TestMatrix b(*device, *stream, p.dtype, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n,
                   p.transpose_b ? p.k : p.n);
      TestMatrix c(*device, *stream, p.c_dtype, p.m, p.n, p.n + 3);
      TestMatrix c_before(*device, *stream, p.c_dtype, p.m, p.n, p.n);
      a.fill_normal(random);
      b.fill_normal(random);
      c.fill_normal(random);
      c_before.fill([&](int64_t i, int64_t j) { return c(i, j); });
      const Bytes size = matmul.scratch(a.view(), p.transpose_a, b.view(), p.transpose_b, c.view());
      const auto memory = device->allocate(size);
      matmul.run(a.view(), p.transpose_a, b.view(), p.transpose_b, c.view(), p.accumulate,
                 {memory->data(), size});
      c.download();
      expect_product(p, a, b, c_before, c);
    }
  }
}

}  // namespace
}  // namespace headrace::device::testing
