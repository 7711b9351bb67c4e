#include "device/cuda/cuda_flash.h"

#include <algorithm>

#include "device/cuda/cuda_launch.h"
#include "device/cuda/kernels/flash_dispatch.inl.h"

namespace headrace::device::cuda {

namespace {

/// What the host needs to know of one kernel.
struct KernelFacts {
  uint32_t threads = 0;
  int64_t shared_bytes = 0;
  int64_t rows = 0;  ///< of a block
};

template <template <class, FlashVariant> class Kernel>
KernelFacts facts_of(FlashVariant variant) {
  KernelFacts facts;
  dispatch_flash_variant<Kernel, Bf16>(variant, [&]<class K>() {
    facts = {K::kThreads, K::kSharedBytes, K::kOwn};
    return true;
  });
  return facts;
}

bool fits(const GpuFacts& gpu, FlashVariant variant) {
  return std::max({facts_of<FlashForward>(variant).shared_bytes,
                   facts_of<FlashBackwardKeys>(variant).shared_bytes,
                   facts_of<FlashBackwardQueries>(variant).shared_bytes}) <= gpu.shared_bytes;
}

bool is_aligned(const AttentionArguments& a) {
  constexpr int64_t kElements = 8;  // of 2 bytes in 16
  const void* const all[] = {a.q, a.k, a.v, a.out, a.dout, a.dq, a.dk, a.dv};
  return a.head_dim % kElements == 0 && a.q_stride % kElements == 0 &&
         a.k_stride % kElements == 0 && a.v_stride % kElements == 0 &&
         a.out_stride % kElements == 0 &&
         std::all_of(std::begin(all), std::end(all), is_on_16_bytes);
}

/// How many heads of `heads` to a sequence are worked on side by side: so many that what they
/// stream stays in the L2 cache of any GPU meant here. `group` of them stream `streamed` heads.
int64_t section_of(const AttentionArguments& a, int64_t heads, int64_t streamed, int64_t group) {
  constexpr int64_t kCacheBytes = int64_t{16} << 20;
  const int64_t bytes = streamed * 2 * a.seq * a.head_dim * 2;
  const int64_t groups = kCacheBytes / std::max<int64_t>(1, bytes);
  return std::clamp<int64_t>(groups * group, group, std::max(group, a.batch * heads));
}

template <template <class, FlashVariant> class Kernel>
void post(const Gpu& gpu, Stream& stream, KernelId id, FlashVariant variant, DType dtype,
          int64_t rows, int64_t heads, const AttentionArguments& arguments) {
  const KernelFacts facts = facts_of<Kernel>(variant);
  Launch launch = make_launch(id, dtype, ceil_div(rows, facts.rows) * heads, 1, facts.threads,
                              facts.shared_bytes);
  launch.variant = variant;
  post_launch(gpu, stream, launch, arguments);
}

}  // namespace

std::optional<FlashVariant> flash_variant(const GpuFacts& gpu, const AttentionShape& shape,
                                          DType dtype) {
  constexpr int kFirstGeneration = 8;  // with bf16 on tensor cores and asynchronous copies
  // In the kernels offsets within a tile, numbers of blocks and numbers of a sequence have 32 bits.
  constexpr int64_t kLongestStride = int64_t{1} << 22;
  constexpr int64_t kMostQueries = int64_t{1} << 30;
  constexpr int64_t kMostOfSequence = int64_t{1} << 29;
  const int64_t longest =
      std::max({shape.q_stride, shape.k_stride, shape.v_stride, shape.out_stride});
  const int64_t of_sequence = shape.seq * shape.q_heads;
  // The running maximum is of scores before scaling, which a factor of 0 or below would reverse.
  if ((dtype != DType::bf16 && dtype != DType::f16) || shape.scale <= 0 ||
      gpu.major < kFirstGeneration || longest > kLongestStride || of_sequence > kMostOfSequence ||
      shape.batch * of_sequence > kMostQueries) {
    return std::nullopt;
  }
  for (const FlashVariant variant :
       {FlashVariant::dim64, FlashVariant::dim128, FlashVariant::dim128_small}) {
    const int64_t most = variant == FlashVariant::dim64 ? 64 : 128;
    if (shape.head_dim <= most && fits(gpu, variant)) {
      return variant;
    }
  }
  return std::nullopt;
}

void post_flash_forward(const Gpu& gpu, Stream& stream, FlashVariant variant, DType dtype,
                        AttentionArguments arguments) {
  const int64_t group = arguments.q_heads / arguments.kv_heads;
  arguments.is_aligned = is_aligned(arguments);
  arguments.section = section_of(arguments, arguments.q_heads, 1, group);
  post<FlashForward>(gpu, stream, KernelId::flash_forward, variant, dtype, arguments.seq,
                     arguments.batch * arguments.q_heads, arguments);
}

void post_flash_backward(const Gpu& gpu, Stream& stream, FlashVariant variant, DType dtype,
                         AttentionArguments arguments) {
  const int64_t group = arguments.q_heads / arguments.kv_heads;
  arguments.is_aligned = is_aligned(arguments);
  post<FlashDelta>(gpu, stream, KernelId::flash_delta, variant, dtype,
                   arguments.batch * arguments.seq * arguments.q_heads, 1, arguments);
  arguments.section = section_of(arguments, arguments.kv_heads, group, 1);
  post<FlashBackwardKeys>(gpu, stream, KernelId::flash_backward_keys, variant, dtype, arguments.seq,
                          arguments.batch * arguments.kv_heads, arguments);
  arguments.section = section_of(arguments, arguments.q_heads, 1, group);
  post<FlashBackwardQueries>(gpu, stream, KernelId::flash_backward_queries, variant, dtype,
                             arguments.seq, arguments.batch * arguments.q_heads, arguments);
}

}  // namespace headrace::device::cuda
