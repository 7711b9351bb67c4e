// The emulated GPU of tensor-core attention: what its instructions do, and that it notices misuse.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "tests/fake_cuda/lockstep_block.h"

namespace headrace::device::testing {
namespace {

constexpr int kThreads = 64;  // two warps, which do different work
using Block = LockstepBlock<kThreads>;
using F32 = Block::F32;
using I32 = Block::I32;
using U32 = Block::U32;
using Mask = Block::Mask;

class LockstepTest : public ::testing::Test {
 protected:
  void SetUp() override { std::iota(source_.begin(), source_.end(), 1.0F); }

  /// Every thread copies its 4 words to `at`.
  void copy_all() {
    block_.copy_async_16(block_.thread() * 16, source_.data(), block_.thread() * 4, Mask(true));
    block_.commit();
  }

  std::vector<float> source_ = std::vector<float>(4 * kThreads);
  std::vector<float> target_ = std::vector<float>(kThreads);
  SharedMemory shared_{8192};
  GlobalMemory global_{{{source_.data(), kThreads, 16, 16, false},
                        {target_.data(), 1, 4 * kThreads, 4 * kThreads, true}}};
  Block block_{0, shared_, global_};
};

/// Where a value lies in a matrix of `rows` rows, column by column: by the tables of strides with
/// which CUTLASS describes the operands of m16n8k16 (thread = lane % 4, lane / 4; value bit by
/// bit).
struct Layout {
  int rows;
  int thread_low, thread_high;
  std::vector<int> value;

  std::pair<int, int> operator()(int lane, int index) const {
    int at = lane % 4 * thread_low + lane / 4 * thread_high;
    for (size_t bit = 0; bit < value.size(); ++bit) {
      at += (index >> bit & 1) * value[bit];
    }
    return {at % rows, at / rows};
  }
};
const Layout kLayoutA{16, 32, 1, {16, 8, 128}};
const Layout kLayoutB{8, 16, 1, {8, 64}};  // (column, row): of the transposed matrix
const Layout kLayoutC{16, 32, 1, {16, 8}};

template <class T>
void check_multiply(const Block& block) {
  Random random(1, 0);
  float a[2][16][16];
  float b[2][16][8];
  const auto number = [&] { return kernels::to_f32(kernels::from_f32<T>(random.normal())); };
  for (int warp = 0; warp < 2; ++warp) {
    for (int k = 0; k < 16; ++k) {
      for (int i = 0; i < 16; ++i) {
        a[warp][i][k] = number();
      }
      for (int i = 0; i < 8; ++i) {
        b[warp][k][i] = number();
      }
    }
  }
  U32 left[4];
  U32 right[2];
  F32 sum[4];
  const auto bits = [](float value) { return uint32_t{kernels::from_f32<T>(value).bits}; };
  for (int thread = 0; thread < kThreads; ++thread) {
    const int warp = thread / 32;
    for (int r = 0; r < 4; ++r) {
      left[r].at[thread] = 0;
      for (int half = 0; half < 2; ++half) {
        const auto [row, k] = kLayoutA(thread % 32, 2 * r + half);
        left[r].at[thread] |= bits(a[warp][row][k]) << (16 * half);
      }
      sum[r].at[thread] = static_cast<float>(thread + r);
    }
    for (int r = 0; r < 2; ++r) {
      right[r].at[thread] = 0;
      for (int half = 0; half < 2; ++half) {
        const auto [column, k] = kLayoutB(thread % 32, 2 * r + half);
        right[r].at[thread] |= bits(b[warp][k][column]) << (16 * half);
      }
    }
  }
  block.multiply<T>(sum, left, right[0], right[1]);
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int i = 0; i < 4; ++i) {
      const auto [row, column] = kLayoutC(thread % 32, i);
      double expected = thread + i;
      for (int k = 0; k < 16; ++k) {
        expected += double{a[thread / 32][row][k]} * double{b[thread / 32][k][column]};
      }
      EXPECT_NEAR(sum[i].at[thread], expected, 1e-4) << "thread " << thread << " sum " << i;
    }
  }
}

TEST_F(LockstepTest, MultipliesAsTheOperandsOfM16N8K16Lie) {
  check_multiply<Bf16>(block_);
  check_multiply<F16>(block_);
}

/// An 8 x 8 matrix of 16-bit elements per 8 lanes; element (r, c) of matrix m is 64 m + 8 r + c.
TEST_F(LockstepTest, LoadsMatricesAndTheirTransposes) {
  const I32 lane = block_.thread() & 31;
  const I32 row = block_.thread() * 16;
  for (int word = 0; word < 4; ++word) {
    U32 value;
    for (int i = 0; i < kThreads; ++i) {
      const uint32_t first = static_cast<uint32_t>(i) * 8 + static_cast<uint32_t>(word) * 2;
      value.at[i] = first | (first + 1) << 16;
    }
    block_.store_shared_4(row + word * 4, value);
  }
  block_.sync();
  U32 plain[4];
  U32 transposed[4];
  block_.load_matrices(row, plain);
  block_.load_matrices_transposed(row, transposed);
  for (int i = 0; i < kThreads; ++i) {
    for (int m = 0; m < 4; ++m) {
      const auto matrix = static_cast<uint32_t>(i / 32 * 4 + m) * 64;
      const auto outer = static_cast<uint32_t>(lane.at[i] / 4);
      const auto inner = static_cast<uint32_t>(lane.at[i] % 4 * 2);
      EXPECT_EQ(plain[m].at[i], (matrix + 8 * outer + inner) | (matrix + 8 * outer + inner + 1)
                                                                   << 16);
      EXPECT_EQ(transposed[m].at[i],
                (matrix + 8 * inner + outer) | (matrix + 8 * (inner + 1) + outer) << 16);
    }
  }
}

TEST_F(LockstepTest, PacksTheLowHalfFirst) {
  const U32 packed = block_.pack<Bf16>(F32(1.0F), F32(-2.0F));
  EXPECT_EQ(packed.at[7], 0xc0003f80U);
  EXPECT_EQ(block_.pack<F16>(F32(1.0F), F32(-2.0F)).at[7], 0xc0003c00U);
}

TEST_F(LockstepTest, CopiesArriveWhenTheyAreWaitedFor) {
  copy_all();
  F32 pair[2];
  EXPECT_THROW(block_.load_shared_2(block_.thread() * 8, pair), InternalError);
  EXPECT_THROW(block_.finish(), InternalError);
  block_.wait<0>();
  block_.finish();
  block_.sync();
  block_.load_shared_2(block_.thread() * 8, pair);
  EXPECT_EQ(pair[1].at[5], 12.0F);
}

TEST_F(LockstepTest, OlderGroupsArriveFirst) {
  copy_all();
  block_.copy_async_16(block_.thread() * 16 + 1024, source_.data(), block_.thread() * 4,
                       block_.thread() < 3);
  block_.commit();
  block_.wait<1>();
  block_.sync();
  F32 pair[2];
  block_.load_shared_2(block_.thread() * 8, pair);
  EXPECT_THROW(block_.load_shared_2(block_.thread() * 8 + 1024, pair), InternalError);
  block_.wait<0>();
  block_.sync();
  block_.load_shared_2(block_.thread() * 8 + 1024, pair);
  EXPECT_EQ(pair[0].at[5], 11.0F);
  EXPECT_EQ(pair[0].at[6], 0.0F) << "zeros where there was nothing";
}

TEST_F(LockstepTest, NoticesRaces) {
  copy_all();
  block_.wait<0>();
  F32 pair[2];
  // Another thread's words without a barrier.
  EXPECT_THROW(block_.load_shared_2(block_.thread() * 8, pair), InternalError);
  block_.sync();
  U32 words[4];
  block_.load_matrices(block_.thread() * 16, words);
  EXPECT_THROW(block_.store_shared_4(block_.thread() * 4, U32(0)), InternalError);
  EXPECT_THROW(copy_all(), InternalError) << "a copy onto what is being read";
  block_.sync();
  EXPECT_THROW(block_.store_shared_4(block_.thread() / 2 * 4, U32(0)), InternalError)
      << "two threads write one word";
}

TEST_F(LockstepTest, NoticesUnsetMisalignedAndOutside) {
  F32 pair[2];
  U32 words[4];
  EXPECT_THROW(block_.load_shared_2(block_.thread() * 8, pair), InternalError) << "not set";
  copy_all();
  block_.wait<0>();
  block_.sync();
  EXPECT_THROW(block_.load_matrices(block_.thread() * 8, words), InternalError) << "misaligned";
  EXPECT_THROW(block_.load_matrices(block_.thread() * 16 + 8192, words), InternalError);
  EXPECT_THROW(block_.load_matrices(block_.thread() * 16 - 16, words), InternalError);
  const I32 thread = block_.thread();
  EXPECT_THROW(block_.load_f32(source_.data(), thread + 4 * kThreads, Mask(true)), InternalError);
  EXPECT_THROW(block_.copy_async_16(thread * 16 + 2048, source_.data(), thread * 2, Mask(true)),
               InternalError)
      << "misaligned in global memory";
  EXPECT_THROW(block_.store_f32(source_.data(), thread, F32(0.0F), Mask(true)), InternalError)
      << "an operand that is only read";
  block_.store_f32(target_.data(), thread, F32(3.0F), thread < kThreads);
  EXPECT_EQ(target_[kThreads - 1], 3.0F);
}

TEST_F(LockstepTest, CountsBankConflicts) {
  // 64 rows of 128 bytes; the first chunk of each.
  const I32 row = block_.thread();
  const auto conflicts_of = [&](const I32& chunk) {
    const int64_t before = shared_.conflicts();
    block_.copy_async_16(row * 128 + chunk * 16, source_.data(), row * 4, Mask(true));
    block_.commit();
    block_.wait<0>();
    block_.sync();
    return shared_.conflicts() - before;
  };
  EXPECT_EQ(conflicts_of(I32(0)), 8 * 7) << "8 passes of 8 threads that want the same banks";
  EXPECT_EQ(conflicts_of(row & 7), 0);
  EXPECT_EQ(conflicts_of((row & 7) % 7), 8) << "the last of 8 threads wants the first one's";
}

}  // namespace
}  // namespace headrace::device::testing
