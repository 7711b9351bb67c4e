// Sequences that several documents share, and sliding windows.
#include "base/parallel.h"
#include "tests/device/attention_suite.h"

namespace headrace::device::testing {
namespace {

class PackedAttentionTest : public AttentionTest {
 protected:
  static std::vector<std::vector<std::byte>> bits_of(const Operands& o) {
    return {o.out.bits(), o.log_sum_exp.bits(), o.dq.bits(), o.dk.bits(), o.dv.bits()};
  }

  /// The results of a case with operands that depend on the seed and the shape alone.
  std::vector<std::vector<std::byte>> bits_of(const Case& c, uint64_t seed) {
    Operands o(*device_, *stream_, c);
    Random random(seed, 0);
    o.fill(random);
    run(c, o);
    return bits_of(o);
  }
};

TEST_P(PackedAttentionTest, SmallShapes) {
  uint64_t seed = 100;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    check({1, 1, 1, 1, 16, dtype, 0, 0, {{1}}}, ++seed);
    check({2, 7, 4, 2, 8, dtype, 5, 1, {{3, 4}, {1, 1, 1, 4}}}, ++seed);
    check({3, 17, 3, 1, 20, dtype, 1, 3, {{17}, {16, 1}, {1, 16}}}, ++seed);
    check({1, 33, 6, 6, 64, dtype, 8, 0, {{5, 13, 15}}}, ++seed);
  }
}

/// Borders at the edges of tiles of every device and kernel, beside them and between.
TEST_P(PackedAttentionTest, SeveralTiles) {
  check({1, 150, 9, 3, 64, DType::bf16, 0, 0, {{64, 64, 22}}}, 121);
  check({1, 129, 3, 1, 24, DType::f32, 3, 0, {{127, 1, 1}}}, 122);
  check({2, 300, 2, 2, 16, DType::f32, 0, 0, {{128, 128, 44}, {1, 63, 65, 100, 71}}}, 123);
  check({2, 261, 4, 1, 128, DType::f16, 0, 0, {{48, 80, 5, 128}, {200, 61}}}, 124);
  check({2, 300, 2, 1, 64, DType::bf16, 2, 1, {{129, 171}, {31, 1, 240, 28}}}, 125);
  // Heads that tensor cores do not take.
  check({1, 140, 2, 1, 160, DType::bf16, 0, 0, {{16, 64, 60}}}, 126);
}

/// Windows at the edges of tiles, beside them, and shorter and longer than documents.
TEST_P(PackedAttentionTest, SlidingWindows) {
  check({2, 17, 3, 1, 20, DType::f32, 1, 3, {}, 5}, 131);
  check({1, 150, 9, 3, 64, DType::bf16, 0, 0, {}, 64}, 132);
  check({1, 200, 2, 1, 128, DType::f16, 0, 0, {}, 65}, 133);
  check({2, 300, 2, 2, 16, DType::f32, 0, 0, {}, 1}, 134);
  check({1, 300, 2, 1, 64, DType::bf16, 2, 1, {}, 129}, 135);
  check({2, 261, 4, 1, 128, DType::bf16, 0, 0, {{48, 80, 5, 128}, {200, 61}}, 70}, 136);
  check({1, 140, 2, 1, 160, DType::bf16, 0, 0, {{16, 64, 60}}, 33}, 137);
}

TEST_P(PackedAttentionTest, AWindowThatHidesNothingChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Case c{2, 150, 4, 2, 32, dtype};
    const auto expected = bits_of(c, 145);
    c.window = 150;
    EXPECT_TRUE(bits_of(c, 145) == expected) << to_string(dtype);
    c.window = 149;
    EXPECT_FALSE(bits_of(c, 145) == expected) << to_string(dtype);
  }
}

TEST_P(PackedAttentionTest, DocumentsOfOneTokenSeeThemselves) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Case c{1, 200, 2, 1, 64, dtype, 0, 0, {std::vector<int32_t>(200, 1)}};
    Operands o(*device_, *stream_, c);
    Random random(130, 0);
    o.fill(random);
    run(c, o);
    for (int64_t i = 0; i < c.seq; ++i) {
      for (int64_t x = 0; x < c.q_heads * c.head_dim; ++x) {
        ASSERT_EQ(o.out(i, x), o.v(i, x % c.head_dim)) << i << ", " << x;
      }
    }
    check_backward(c, o, Oracle(c, o.shape().scale, o.q, o.k), o.shape().scale);
  }
}

TEST_P(PackedAttentionTest, OneDocumentChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Case c{2, 300, 4, 2, 32, dtype};
    const auto expected = bits_of(c, 140);
    c.documents = {{300}, {300}};
    EXPECT_TRUE(bits_of(c, 140) == expected) << to_string(dtype);
  }
}

/// The rows of a batch of sequences are those of a sequence that they share. Where documents begin
/// with tiles, the same sums are added in the same order.
TEST_P(PackedAttentionTest, DocumentsThatBeginWithTilesGiveTheBitsOfTheirOwnSequences) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t head_dim : {64, 128}) {
      const Case together{1, 256, 2, 1, head_dim, dtype, 0, 0, {{128, 128}}};
      const Case apart{2, 128, 2, 1, head_dim, dtype};
      auto packed = bits_of(together, 150);
      auto alone = bits_of(apart, 150);
      // [batch, heads, seq]: the log-sum-exp lies in another order.
      packed.erase(packed.begin() + 1);
      alone.erase(alone.begin() + 1);
      EXPECT_TRUE(packed == alone) << together.describe();
    }
  }
}

TEST_P(PackedAttentionTest, OtherDocumentsChangeNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Case c{1, 210, 4, 2, 64, dtype, 0, 0, {{75, 90, 45}}};
    const auto middle = [&](bool others_differ) {
      Operands o(*device_, *stream_, c);
      Random random(160, 0);
      o.fill(random);
      const auto change = [&](TestMatrix& matrix) {
        matrix.fill([&](int64_t r, int64_t x) {
          const bool is_other = r < 75 || r >= 165;
          return others_differ && is_other ? 50 - 3 * matrix(r, x) : matrix(r, x);
        });
      };
      for (TestMatrix* matrix : {&o.q, &o.k, &o.v, &o.dout}) {
        change(*matrix);
      }
      run(c, o);
      std::vector<double> values;
      for (const TestMatrix* matrix : {&o.out, &o.dq, &o.dk, &o.dv}) {
        for (int64_t r = 75; r < 165; ++r) {
          for (int64_t x = 0; x < matrix->columns(); ++x) {
            values.push_back((*matrix)(r, x));
          }
        }
      }
      return values;
    };
    EXPECT_TRUE(middle(true) == middle(false)) << to_string(dtype);
  }
}

TEST_P(PackedAttentionTest, SameBitsForAnyThreadCountAndAddress) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<std::byte>> expected;
    for (const int threads : {1, 2, 3, 7}) {
      const int64_t shift = threads == 1 ? 0 : threads;
      stream_->run_on_host([threads] { set_parallel_threads(threads); });
      const auto bits = bits_of({1, 333, 6, 2, 32, dtype, shift, shift, {{100, 1, 29, 203}}}, 170);
      expected = expected.empty() ? bits : expected;
      EXPECT_TRUE(bits == expected) << threads << " threads in " << to_string(dtype);
    }
  }
}

TEST_P(PackedAttentionTest, RefusesBeginsWithoutEnds) {
  const Case c{1, 8, 4, 2, 16, DType::f32, 0, 0, {{3, 5}}};
  Operands o(*device_, *stream_, c);
  AttentionShape shape = o.shape();
  shape.visible.ends = nullptr;
  const Workspace workspace = scratch(kernels().attention_scratch(shape, c.dtype));
  EXPECT_THROW(
      kernels().attention_forward(*stream_, shape, c.dtype, o.q.data(), o.k.data(), o.v.data(),
                                  o.out.data(), o.log_sum_exp.data<float>(), workspace),
      InternalError);
}

// FlashTest has the same kernels in graphs.
HEADRACE_DEVICE_SUITE_OVER(PackedAttentionTest, devices_but_emulated_graphs());

}  // namespace
}  // namespace headrace::device::testing
