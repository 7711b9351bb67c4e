// Tensor-core attention of the CUDA device beside its fp32 kernels, and what its blocks do.
#include <algorithm>
#include <set>

#include "device/cuda/cuda_flash.h"
#include "device/cuda/kernels/flash_dispatch.inl.h"
#include "tests/device/borders.h"
#include "tests/device/device_suite.h"
#include "tests/fake_cuda/fake_flash.h"

namespace headrace::device::testing {
namespace {

using cuda::FlashVariant;

/// Operands of one attention in one dtype.
struct Attention {
  Attention(Device& device, Stream& stream, const AttentionShape& of, DType dtype)
      : shape(of),
        q(device, stream, dtype, rows(), q_columns(), q_columns()),
        k(device, stream, dtype, rows(), kv_columns(), kv_columns()),
        v(device, stream, dtype, rows(), kv_columns(), kv_columns()),
        out(device, stream, dtype, rows(), q_columns(), q_columns()),
        dout(device, stream, dtype, rows(), q_columns(), q_columns()),
        dq(device, stream, dtype, rows(), q_columns(), q_columns()),
        dk(device, stream, dtype, rows(), kv_columns(), kv_columns()),
        dv(device, stream, dtype, rows(), kv_columns(), kv_columns()),
        log_sum_exp(device, stream, DType::f32, of.batch * of.q_heads, of.seq, of.seq) {}

  AttentionShape shape;
  int64_t rows() const { return shape.batch * shape.seq; }
  int64_t q_columns() const { return shape.q_heads * shape.head_dim; }
  int64_t kv_columns() const { return shape.kv_heads * shape.head_dim; }
  TestMatrix q, k, v, out, dout, dq, dk, dv, log_sum_exp;
};

AttentionShape dense_shape(int64_t batch, int64_t seq, int64_t q_heads, int64_t kv_heads,
                           int64_t head_dim) {
  return {batch,
          seq,
          q_heads,
          kv_heads,
          head_dim,
          1.0F / std::sqrt(static_cast<float>(head_dim)),
          q_heads * head_dim,
          kv_heads * head_dim,
          kv_heads * head_dim,
          q_heads * head_dim};
}

class FlashTest : public DeviceTest {
 protected:
  /// |a - b| / |b|, over all elements.
  static double distance(const TestMatrix& a, const TestMatrix& b) {
    double difference = 0;
    double size = 0;
    for (int64_t r = 0; r < b.rows(); ++r) {
      for (int64_t c = 0; c < b.columns(); ++c) {
        difference += (a(r, c) - b(r, c)) * (a(r, c) - b(r, c));
        size += b(r, c) * b(r, c);
      }
    }
    return std::sqrt(difference / size);
  }

  void run_forward(Attention& a, DType dtype) {
    const Workspace workspace = scratch(kernels().attention_scratch(a.shape, dtype));
    kernels().attention_forward(*stream_, a.shape, dtype, a.q.data(), a.k.data(), a.v.data(),
                                a.out.data(), a.log_sum_exp.data<float>(), workspace);
    a.out.download();
    a.log_sum_exp.download();
  }
  void run_backward(Attention& a, DType dtype) {
    const Workspace workspace = scratch(kernels().attention_scratch(a.shape, dtype));
    kernels().attention_backward(*stream_, a.shape, dtype, a.q.data(), a.k.data(), a.v.data(),
                                 a.out.data(), a.dout.data(), a.log_sum_exp.data<float>(),
                                 a.dq.data(), a.dk.data(), a.dv.data(), workspace);
    for (TestMatrix* const gradient : {&a.dq, &a.dk, &a.dv}) {
      gradient->download();
    }
  }

  /// The 16-bit kernels against the fp32 ones on the same numbers: each result within three
  /// roundings to the dtype, in the norm (of probabilities, of their gradients, of the result).
  /// `lengths`: of the documents that share the sequence; empty: one has it.
  void compare(AttentionShape shape, DType dtype, uint64_t seed,
               const std::vector<int32_t>& lengths = {}, int32_t window = Borders::kAll) {
    const Borders borders(lengths, window);
    const auto begins = array(borders.begins);
    const auto ends = array(borders.ends);
    if (!lengths.empty()) {
      shape.visible = {begins.data(), ends.data()};
    }

    Attention narrow(*device_, *stream_, shape, dtype);
    Attention wide(*device_, *stream_, shape, DType::f32);
    Random random(seed, 0);
    const auto fill = [&](TestMatrix& source, TestMatrix& target) {
      source.fill_normal(random);
      target.fill([&](int64_t r, int64_t c) { return source(r, c); });
    };
    fill(narrow.q, wide.q);
    fill(narrow.k, wide.k);
    fill(narrow.v, wide.v);
    fill(narrow.dout, wide.dout);
    run_forward(narrow, dtype);
    run_forward(wide, DType::f32);
    const double bound = 3 * unit_roundoff(dtype);
    const std::string name = fmt::format("seq {}, head_dim {}, {} documents, {}", shape.seq,
                                         shape.head_dim, lengths.size(), to_string(dtype));
    EXPECT_LE(distance(narrow.out, wide.out), bound) << name;
    EXPECT_LE(distance(narrow.log_sum_exp, wide.log_sum_exp), 1e-5) << name;
    // Both go back from the same output.
    wide.out.fill([&](int64_t r, int64_t c) { return narrow.out(r, c); });
    run_backward(narrow, dtype);
    run_backward(wide, DType::f32);
    EXPECT_LE(distance(narrow.dq, wide.dq), bound) << name;
    EXPECT_LE(distance(narrow.dk, wide.dk), bound) << name;
    EXPECT_LE(distance(narrow.dv, wide.dv), bound) << name;
  }
};

TEST_P(FlashTest, AgreesWithTheFp32Kernels) {
  // The real GPU has time for the lengths that count.
  const int64_t factor = GetParam().name == "gpu" ? 8 : 1;
  compare(dense_shape(1, 300 * factor, 4, 2, 128), DType::bf16, 101);
  compare(dense_shape(2, 257 * factor, 3, 1, 64), DType::bf16, 102);
  compare(dense_shape(1, 128 * factor, 2, 2, 96), DType::f16, 103);
}

TEST_P(FlashTest, PackedAgreesWithTheFp32Kernels) {
  compare(dense_shape(1, 300, 4, 2, 128), DType::bf16, 111, {100, 1, 27, 140, 32});
  compare(dense_shape(1, 257, 3, 1, 64), DType::bf16, 112, {128, 64, 65});
  compare(dense_shape(1, 140, 2, 2, 96), DType::f16, 113, {33, 32, 75});
}

TEST_P(FlashTest, WindowedAgreesWithTheFp32Kernels) {
  compare(dense_shape(1, 300, 4, 2, 128), DType::bf16, 121, {300}, 100);
  compare(dense_shape(1, 257, 3, 1, 64), DType::bf16, 122, {257}, 64);
  compare(dense_shape(1, 140, 2, 2, 96), DType::f16, 123, {33, 107}, 40);
}

/// A GPU with 99 KiB of shared memory for a block takes smaller tiles.
std::vector<DeviceFactory> flash_devices() {
  std::vector<DeviceFactory> devices = all_devices();
  devices.push_back({"fake_cuda_small", [] {
                       FakeCuda::Options options;
                       options.shared_bytes = int64_t{99} << 10;
                       return std::make_unique<cuda::CudaDevice>(
                           std::make_shared<FakeCuda>(options), 0);
                     }});
  return devices;
}
INSTANTIATE_TEST_SUITE_P(Devices, FlashTest, ::testing::ValuesIn(flash_devices()),
                         [](const auto& made) { return made.param.name; });

TEST(FlashChoice, FollowsDtypeHeadAndGpu) {
  cuda::GpuFacts gpu;
  gpu.major = 9;
  gpu.shared_bytes = int64_t{227} << 10;
  const auto choose = [&](DType dtype, int64_t head_dim) {
    return cuda::flash_variant(gpu, dense_shape(1, 64, 4, 2, head_dim), dtype);
  };
  EXPECT_EQ(choose(DType::bf16, 64), FlashVariant::dim64);
  EXPECT_EQ(choose(DType::f16, 20), FlashVariant::dim64);
  EXPECT_EQ(choose(DType::bf16, 128), FlashVariant::dim128);
  EXPECT_EQ(choose(DType::bf16, 66), FlashVariant::dim128);
  EXPECT_EQ(choose(DType::bf16, 130), std::nullopt);
  EXPECT_EQ(choose(DType::f32, 64), std::nullopt);
  gpu.shared_bytes = int64_t{163} << 10;  // sm_80
  EXPECT_EQ(choose(DType::bf16, 128), FlashVariant::dim128);
  gpu.shared_bytes = int64_t{99} << 10;  // sm_89
  EXPECT_EQ(choose(DType::bf16, 64), FlashVariant::dim64);
  EXPECT_EQ(choose(DType::bf16, 128), FlashVariant::dim128_small);
  gpu.shared_bytes = int64_t{48} << 10;
  EXPECT_EQ(choose(DType::bf16, 128), std::nullopt);
  gpu.shared_bytes = int64_t{99} << 10;
  gpu.major = 7;
  EXPECT_EQ(choose(DType::bf16, 64), std::nullopt);
  gpu.major = 8;
  AttentionShape reversed = dense_shape(1, 64, 4, 2, 64);
  reversed.scale = -1;
  EXPECT_EQ(cuda::flash_variant(gpu, reversed, DType::bf16), std::nullopt);
}

/// The index of a block, which is all that its place depends on.
struct Index {
  int value;
  int index() const { return value; }
};

/// Every tile of every head has one block, also for more heads than a second dimension of a grid
/// may have; the longest tiles of a section come first.
TEST(FlashPlaces, CoverEveryTileOfEveryHeadOnce) {
  using Tiles = cuda::FlashSizes<FlashVariant::dim64>::Forward;
  using Tile = cuda::FlashTile<Bf16, Tiles>;
  struct Case {
    int64_t batch, seq, q_heads, kv_heads, section;
  };
  for (const Case& c : {Case{1, 1, 1, 1, 1}, Case{3, 300, 6, 2, 4}, Case{5, 129, 4, 4, 100},
                        Case{9000, 200, 8, 1, 64}}) {
    cuda::AttentionArguments a;
    a.batch = c.batch;
    a.seq = c.seq;
    a.q_heads = c.q_heads;
    a.kv_heads = c.kv_heads;
    a.head_dim = 64;
    a.section = c.section;
    const auto tiles = static_cast<int>((c.seq + Tiles::kOwn - 1) / Tiles::kOwn);
    std::set<std::pair<int64_t, int>> queries;
    std::set<std::pair<int64_t, int>> keys;
    const int blocks = tiles * static_cast<int>(c.batch * c.q_heads);
    for (int i = 0; i < blocks; ++i) {
      const Tile tile = Tile::of_queries(Index{i}, a);
      queries.emplace(tile.head.statistics(a) / c.seq, tile.first);
      EXPECT_EQ(tile.there, std::min<int64_t>(Tiles::kOwn, c.seq - tile.first));
      if (i % (tiles * c.section) == 0) {
        EXPECT_EQ(tile.first, (tiles - 1) * Tiles::kOwn) << "block " << i;
      }
    }
    const int key_blocks = tiles * static_cast<int>(c.batch * c.kv_heads);
    for (int i = 0; i < key_blocks; ++i) {
      const Tile tile = Tile::of_keys(Index{i}, a);
      keys.emplace(tile.head.statistics(a) / c.seq, tile.first);
      EXPECT_EQ(tile.head.statistics(a) / c.seq % (c.q_heads / c.kv_heads), 0);
    }
    EXPECT_EQ(queries.size(), static_cast<size_t>(blocks));
    EXPECT_EQ(keys.size(), static_cast<size_t>(key_blocks));
  }
}

/// What one kernel does for one head: no bank conflicts, and products of the tiles that the mask
/// leaves, counted one by one. `lengths`: as of FlashTest::compare.
template <template <class, FlashVariant> class Kernel, FlashVariant kVariant>
void check_counts(cuda::KernelId id, bool by_keys, int products_of_tiles,
                  const std::vector<int32_t>& lengths, int32_t window) {
  using K = Kernel<Bf16, kVariant>;
  using Tiles = typename K::Tiles;
  constexpr int64_t kDim = Tiles::kHeadDim;
  constexpr int64_t kSeq = 200;
  std::vector<Bf16> operand(kSeq * kDim, to_bf16(0.5F));
  std::vector<Bf16> result(kSeq * kDim);
  std::vector<Bf16> other(kSeq * kDim);
  std::vector<float> statistics(kSeq);
  cuda::AttentionArguments a;
  a.q = a.k = a.v = a.dout = operand.data();
  a.out = result.data();
  a.dq = a.dk = result.data();
  a.dv = other.data();
  a.log_sum_exp = a.delta = statistics.data();
  a.batch = a.q_heads = a.kv_heads = 1;
  a.seq = kSeq;
  a.head_dim = a.q_stride = a.k_stride = a.v_stride = a.out_stride = kDim;
  a.scale = 0.1F;
  const Borders borders(lengths, window);
  if (!lengths.empty()) {
    a.begins = borders.begins.data();
    a.ends = borders.ends.data();
  }
  a.is_aligned = reinterpret_cast<uintptr_t>(operand.data()) % 16 == 0;
  cuda::Launch launch;
  launch.kernel = id;
  launch.dtype = DType::bf16;
  launch.variant = kVariant;
  launch.threads = K::kThreads;
  launch.shared_bytes = K::kSharedBytes;
  launch.grid_x = (kSeq + Tiles::kOwn - 1) / Tiles::kOwn;
  FlashCounts counts;
  ASSERT_TRUE(run_flash_kernel(launch, &a, &counts));
  EXPECT_EQ(counts.conflicts, 0);
  EXPECT_GT(counts.passes, 0);
  // Tiles are streamed from the first row that some own row meets to the last.
  int64_t pairs = 0;
  for (int64_t own = 0; own < kSeq; own += Tiles::kOwn) {
    int64_t first_met = kSeq;
    int64_t end_met = 0;
    for (int64_t row = own; row < std::min<int64_t>(own + Tiles::kOwn, kSeq); ++row) {
      const auto at = static_cast<size_t>(row);
      const int64_t begin = lengths.empty() ? 0 : borders.begins[at];
      const int64_t end = lengths.empty() ? kSeq : borders.ends[at];
      first_met = std::min(first_met, by_keys ? row : begin);
      end_met = std::max(end_met, by_keys ? end : row + 1);
    }
    pairs += ceil_div(end_met - first_met, int64_t{Tiles::kStreamed});
  }
  const int64_t multiplies = int64_t{Tiles::kOwn} * Tiles::kStreamed * kDim * products_of_tiles;
  EXPECT_EQ(counts.products, pairs * multiplies / (16 * 8 * 16));
}

template <FlashVariant kVariant>
void check_all_counts() {
  struct Seen {
    std::vector<int32_t> lengths;
    int32_t window = Borders::kAll;
  };
  for (const auto& [lengths, window] :
       {Seen{}, Seen{{200}}, Seen{{128, 72}}, Seen{{50, 1, 100, 49}}, Seen{{200}, 30}}) {
    check_counts<cuda::FlashForward, kVariant>(cuda::KernelId::flash_forward, false, 2, lengths,
                                               window);
    check_counts<cuda::FlashBackwardKeys, kVariant>(cuda::KernelId::flash_backward_keys, true, 4,
                                                    lengths, window);
    check_counts<cuda::FlashBackwardQueries, kVariant>(cuda::KernelId::flash_backward_queries,
                                                       false, 3, lengths, window);
  }
}

TEST(FlashKernels, HaveNoBankConflictsAndSkipWhatIsHidden) {
  check_all_counts<FlashVariant::dim64>();
  check_all_counts<FlashVariant::dim128>();
  check_all_counts<FlashVariant::dim128_small>();
}

}  // namespace
}  // namespace headrace::device::testing
