#include <algorithm>

#include "device/cuda/cuda_flash.h"
#include "device/cuda/cuda_launch.h"
#include "device/cuda/kernels/attention_grid.inl.h"

namespace headrace::device::cuda {

namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kDeltaThreads = 64;

/// Shared memory of Kernel, which is the same for every dtype.
template <template <class> class Kernel>
int64_t shared_bytes(const AttentionShape& shape, int64_t tile) {
  using K = Kernel<float>;
  return AttentionTiles(tile, shape.head_dim).floats(K::kHeads, K::kScores, K::kRows) *
         int64_t{sizeof(float)};
}

/// The largest tile whose block fits into the GPU's shared memory, no larger than the sequence asks
/// for. A multiple of 4, and of 16 where heads are no larger than they usually are.
template <template <class> class Kernel>
int64_t tile_of(const Gpu& gpu, const AttentionShape& shape) {
  for (const int64_t tile : {64, 48, 32, 16, 8, 4}) {
    if (shared_bytes<Kernel>(shape, tile) <= gpu.facts.shared_bytes &&
        (tile <= 16 || tile < shape.seq * 2)) {
      return tile;
    }
  }
  throw InputError(fmt::format(
      "attention with a head_dim of {} does not fit into the shared memory of {} ({} bytes a "
      "block); train it on the CPU (headrace.compute: host)",
      shape.head_dim, gpu.describe(), gpu.facts.shared_bytes));
}

template <template <class> class Kernel>
void post_tiles(const Gpu& gpu, Stream& stream, KernelId kernel, const AttentionShape& shape,
                DType dtype, int64_t heads, AttentionArguments arguments) {
  arguments.tile = tile_of<Kernel>(gpu, shape);
  post_launch(gpu, stream,
              make_launch(kernel, dtype, ceil_div(shape.seq, arguments.tile) * shape.batch * heads,
                          1, kThreads, shared_bytes<Kernel>(shape, arguments.tile)),
              arguments);
}

}  // namespace

AttentionArguments attention_arguments(const AttentionShape& shape, const void* q, const void* k,
                                       const void* v, const void* out, float* log_sum_exp) {
  AttentionArguments arguments;
  arguments.q = q;
  arguments.k = k;
  arguments.v = v;
  arguments.out = out;
  arguments.log_sum_exp = log_sum_exp;
  arguments.begins = shape.visible.begins;
  arguments.ends = shape.visible.ends;
  arguments.batch = shape.batch;
  arguments.seq = shape.seq;
  arguments.q_heads = shape.q_heads;
  arguments.kv_heads = shape.kv_heads;
  arguments.head_dim = shape.head_dim;
  arguments.q_stride = shape.q_stride;
  arguments.k_stride = shape.k_stride;
  arguments.v_stride = shape.v_stride;
  arguments.out_stride = shape.out_stride;
  arguments.scale = shape.scale;
  return arguments;
}

void post_attention_forward(const Gpu& gpu, Stream& stream, const AttentionShape& shape,
                            DType dtype, AttentionArguments arguments) {
  if (const auto variant = flash_variant(gpu.facts, shape, dtype)) {
    post_flash_forward(gpu, stream, *variant, dtype, arguments);
    return;
  }
  post_tiles<AttentionForward>(gpu, stream, KernelId::attention_forward, shape, dtype,
                               shape.q_heads, arguments);
}

void post_attention_backward(const Gpu& gpu, Stream& stream, const AttentionShape& shape,
                             DType dtype, AttentionArguments arguments) {
  if (const auto variant = flash_variant(gpu.facts, shape, dtype)) {
    post_flash_backward(gpu, stream, *variant, dtype, arguments);
    return;
  }
  post_launch(gpu, stream,
              make_launch(KernelId::attention_delta, dtype, shape.batch * shape.seq, shape.q_heads,
                          kDeltaThreads),
              arguments);
  post_tiles<AttentionBackwardKeys>(gpu, stream, KernelId::attention_backward_keys, shape, dtype,
                                    shape.kv_heads, arguments);
  post_tiles<AttentionBackwardQueries>(gpu, stream, KernelId::attention_backward_queries, shape,
                                       dtype, shape.q_heads, arguments);
}

Bytes attention_scratch_bytes(const AttentionShape& shape) {
  // delta, one number per query.
  return bytes_for(Elements(shape.batch) * shape.q_heads * shape.seq, DType::f32);
}

}  // namespace headrace::device::cuda
