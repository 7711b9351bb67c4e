#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/cpu/row_kernels.h"
#include "tests/device/row_kernels_testing.h"

namespace headrace::device {
namespace {

std::vector<int32_t> random_ids(int64_t tokens, int64_t vocabulary, uint64_t seed) {
  Random random(seed, 0);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary)));
  }
  return ids;
}

TEST(RowKernels, EmbeddingForwardCopiesRows) {
  for (const DType dtype : kFloatTypes) {
    TestMatrix table(dtype, 50, 33, {3, 1});
    TestMatrix out(dtype, 200, 33, {1, 2});
    table.fill_random(1);
    const std::vector<int32_t> ids = random_ids(200, 50, 9);
    cpu::embedding_forward(table.matrix(), {0, 50}, ids.data(), out.matrix());
    for (int64_t t = 0; t < 200; ++t) {
      for (int64_t c = 0; c < 33; ++c) {
        ASSERT_EQ(out.get(t, c), table.get(ids[static_cast<size_t>(t)], c));
      }
    }
    out.expect_padding_untouched();
  }
}

TEST(RowKernels, EmbeddingBackwardSumsInTokenOrder) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t columns : {1, 33, 1025}) {
      constexpr int64_t kVocabulary = 60;  // some ids have many tokens
      constexpr int64_t kTokens = 150;
      TestMatrix dout(dtype, kTokens, columns, {3, 1});
      TestMatrix dtable(dtype, kVocabulary, columns, {2, 2});
      dout.fill_random(1);
      dtable.fill_random(2);
      const std::vector<int32_t> ids = random_ids(kTokens, kVocabulary / 2, 9);
      cpu::embedding_backward(dout.matrix(), ids.data(), dtable.matrix(), {0, kVocabulary});
      std::vector<float> sums(static_cast<size_t>(kVocabulary * columns));
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t c = 0; c < columns; ++c) {
          sums[static_cast<size_t>(ids[static_cast<size_t>(t)] * columns + c)] += dout.get(t, c);
        }
      }
      for (int64_t v = 0; v < kVocabulary; ++v) {
        for (int64_t c = 0; c < columns; ++c) {
          ASSERT_EQ(dtable.get(v, c), rounded(dtype, sums[static_cast<size_t>(v * columns + c)]));
        }
      }
      dtable.expect_padding_untouched();
    }
  }
}

TEST(RowKernels, EmbeddingGivesTheSameBitsEverywhere) {
  const std::vector<int32_t> ids = random_ids(500, 90, 4);
  for (const DType dtype : kFloatTypes) {
    expect_same_bits([&](Layout layout) {
      TestMatrix dout(dtype, 500, 130, layout);
      TestMatrix dtable(dtype, 300, 130, layout);
      dout.fill_random(1);
      cpu::embedding_backward(dout.matrix(), ids.data(), dtable.matrix(), {0, 300});
      return dtable.elements();
    });
  }
}

/// Parts of the table, one after the other, give what the whole table gives.
TEST(RowKernels, EmbeddingInPartsIsTheWholeEmbedding) {
  constexpr int64_t kVocabulary = 60;
  constexpr int64_t kTokens = 150;
  constexpr int64_t kColumns = 33;
  const std::vector<int32_t> ids = random_ids(kTokens, kVocabulary, 9);
  for (const DType dtype : kFloatTypes) {
    TestMatrix table(dtype, kVocabulary, kColumns);
    TestMatrix dout(dtype, kTokens, kColumns);
    TestMatrix out(dtype, kTokens, kColumns);
    TestMatrix whole_gradient(dtype, kVocabulary, kColumns);
    TestMatrix gradient(dtype, kVocabulary, kColumns);
    table.fill_random(1);
    dout.fill_random(2);
    out.fill_random(3);
    gradient.fill_random(4);
    cpu::embedding_backward(dout.matrix(), ids.data(), whole_gradient.matrix(), {0, kVocabulary});
    const auto rows_of = [](TestMatrix& whole, int64_t first, int64_t rows) {
      Matrix part = whole.matrix();
      part.data = static_cast<std::byte*>(part.data) +
                  bytes_for(Elements(first) * part.stride, part.dtype).count();
      part.rows = rows;
      return part;
    };
    int64_t first = 0;
    for (const int64_t rows : {17, 1, 42}) {
      const TableRange range{first, kVocabulary};
      cpu::embedding_forward(rows_of(table, first, rows), range, ids.data(), out.matrix());
      cpu::embedding_backward(dout.matrix(), ids.data(), rows_of(gradient, first, rows), range);
      first += rows;
    }
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < kColumns; ++c) {
        ASSERT_EQ(out.get(t, c), table.get(ids[static_cast<size_t>(t)], c));
      }
    }
    EXPECT_EQ(gradient.elements(), whole_gradient.elements());
  }
}

TEST(RowKernels, EmbeddingRefusesIdsOutsideTheVocabulary) {
  TestMatrix table(DType::f32, 10, 4);
  TestMatrix out(DType::f32, 2, 4);
  for (const int32_t bad : {-1, 10}) {
    const int32_t ids[2] = {0, bad};
    const TableRange whole{0, 10};
    EXPECT_THROW(cpu::embedding_forward(table.matrix(), whole, ids, out.matrix()), InternalError);
    EXPECT_THROW(cpu::embedding_backward(out.matrix(), ids, table.matrix(), whole), InternalError);
  }
  const int32_t ids[2] = {0, 1};
  for (const TableRange beyond : {TableRange{-1, 20}, TableRange{11, 20}}) {
    EXPECT_THROW(cpu::embedding_forward(table.matrix(), beyond, ids, out.matrix()), InternalError);
  }
}

TEST(RowKernels, BiasGradientSumsRows) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t rows : {0, 1, 64, 65, 1000}) {
      for (const int64_t columns : {1, 255, 257, 700}) {
        TestMatrix dy(dtype, rows, columns, {3, 1});
        TestMatrix dbias(dtype, 1, columns, {0, 1});
        dy.fill_random(1);
        dbias.fill_random(2);
        cpu::bias_gradient(dy.matrix(), dbias.data());
        for (int64_t c = 0; c < columns; ++c) {
          double exact = 0;
          double size = 0;
          for (int64_t r = 0; r < rows; ++r) {
            exact += dy.get(r, c);
            size += std::abs(dy.get(r, c));
          }
          ASSERT_NEAR(dbias.get(0, c), exact,
                      unit_roundoff(dtype) * std::abs(exact) + 80 * 0x1p-24 * size);
        }
        dbias.expect_padding_untouched();
      }
    }
  }
}

TEST(RowKernels, AccumulateAddsOrOverwrites) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t count : {1, 15, 16, 17, 40001}) {
      TestMatrix source(dtype, 1, count, {0, 3});
      TestMatrix target(DType::f32, 1, count, {0, 1});
      TestMatrix before(DType::f32, 1, count);
      source.fill_random(1);
      target.fill_random(2);
      before.fill_random(2);
      auto* sums = static_cast<float*>(target.data());
      cpu::accumulate(source.data(), dtype, sums, Elements(count), false);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(sums[i], before.get(0, i) + source.get(0, i));
      }
      // Overwriting must not read what was there.
      sums[0] = std::numeric_limits<float>::quiet_NaN();
      cpu::accumulate(source.data(), dtype, sums, Elements(count), true);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(sums[i], source.get(0, i));
      }
      target.expect_padding_untouched();
    }
  }
}

TEST(RowKernels, SumsGiveTheSameBitsEverywhere) {
  for (const DType dtype : kFloatTypes) {
    expect_same_bits([&](Layout layout) {
      TestMatrix dy(dtype, 333, 700, layout);
      TestMatrix dbias(dtype, 1, 700, {0, layout.offset});
      dy.fill_random(1);
      cpu::bias_gradient(dy.matrix(), dbias.data());
      return dbias.elements();
    });
  }
  expect_same_bits([](Layout layout) {
    TestMatrix gradient(DType::f32, 1, 600'001, {0, layout.offset});
    gradient.fill_random(1);
    const double sum = cpu::gradient_stats(static_cast<const float*>(gradient.data()),
                                           Elements(gradient.columns()))
                           .sum_of_squares;
    std::vector<std::byte> bytes(sizeof(double));
    std::memcpy(bytes.data(), &sum, sizeof(double));
    return bytes;
  });
}

TEST(RowKernels, GradientStats) {
  EXPECT_EQ(cpu::gradient_stats(nullptr, Elements(0)).sum_of_squares, 0.0);
  EXPECT_TRUE(cpu::gradient_stats(nullptr, Elements(0)).all_finite);
  for (const int64_t count : {1, 63, 65, 257, 262'144, 262'145, 700'000}) {
    TestMatrix gradient(DType::f32, 1, count, {0, 1});
    gradient.fill_random(static_cast<uint64_t>(count));
    auto* values = static_cast<float*>(gradient.data());
    double exact = 0;
    for (int64_t i = 0; i < count; ++i) {
      exact += static_cast<double>(values[i]) * values[i];
    }
    const cpu::GradientStats stats = cpu::gradient_stats(values, Elements(count));
    EXPECT_NEAR(stats.sum_of_squares, exact, 1e-12 * exact);
    EXPECT_TRUE(stats.all_finite);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        const float good = values[at];
        values[at] = bad;
        EXPECT_FALSE(cpu::gradient_stats(values, Elements(count)).all_finite) << at;
        values[at] = good;
      }
    }
  }
}

TEST(RowKernels, GradientStatsOfExtremeValues) {
  const std::vector<float> huge(1000, std::numeric_limits<float>::max());
  EXPECT_TRUE(cpu::gradient_stats(huge.data(), Elements(1000)).all_finite);
  const std::vector<float> tiny(1000, std::numeric_limits<float>::denorm_min());
  EXPECT_DOUBLE_EQ(cpu::gradient_stats(tiny.data(), Elements(1000)).sum_of_squares,
                   1000 * 0x1p-298);
}

}  // namespace
}  // namespace headrace::device
