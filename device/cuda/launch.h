#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/optimizer.h"

/// Kernels of the CUDA device as the host side names and calls them. Arguments are plain structures
/// of device pointers and sizes; strides count elements.
namespace headrace::device::cuda {

enum class KernelId : uint8_t {
  zero_rows,
  add_rows,
  bias_gradient,
  cast,
  accumulate,
  swiglu_forward,
  swiglu_backward,
  rope,
  rms_norm_forward,
  rms_norm_backward,
  sum_partials,
  embedding_forward,
  embedding_backward,
  cross_entropy_start,
  cross_entropy_tile,
  cross_entropy_loss,
  cross_entropy_gradient,
  optimizer_update,
  gradient_statistics,
  largest_magnitude,
  quantize,
  matmul,
  attention_forward,
  attention_delta,
  attention_backward_keys,
  attention_backward_queries,
  flash_forward,
  flash_delta,
  flash_backward_keys,
  flash_backward_queries,
};

/// Which sizes a kernel of tensor-core attention is built for: heads up to 64 or 128 elements; the
/// small one is for GPUs with 99 KiB of shared memory for a block.
enum class FlashVariant : uint8_t { dim64, dim128, dim128_small };

/// One launch. `dtype` is T of the kernel; `target_dtype` only counts for casts and products.
struct Launch {
  KernelId kernel = KernelId::zero_rows;
  DType dtype = DType::f32;
  DType target_dtype = DType::f32;
  FlashVariant variant = FlashVariant::dim64;  ///< of the flash kernels
  uint32_t grid_x = 1;                         ///< blocks
  uint32_t grid_y = 1;                         ///< rows of them; 2^31 - 1 blocks in all
  uint32_t threads = 1;                        ///< per block, a multiple of 32
  uint32_t shared_bytes = 0;                   ///< per block
};

/// Most threads of a block that any kernel is built for.
inline constexpr uint32_t kMostThreads = 512;

/// Operands of an elementwise kernel over [rows, columns]; grid: x pieces of kPieceColumns columns,
/// row by row. An operand with stride 0 is the same row for all.
struct ElementwiseArguments {
  static constexpr int64_t kPieceColumns = 4096;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* out = nullptr;
  void* out2 = nullptr;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0, out_stride = 0, out2_stride = 0;
  int64_t rows = 0, columns = 0;
  bool vectorized = false;  ///< every row of every operand begins at a multiple of 16 bytes
};

/// grid: x columns in groups of kColumns.
struct BiasGradientArguments {
  static constexpr int64_t kColumns = 32;
  static constexpr int64_t kLanes = 16;
  const void* dy = nullptr;
  void* dbias = nullptr;
  int64_t stride = 0, rows = 0, columns = 0;
};

/// grid: x rows.
struct RopeArguments {
  void* x = nullptr;
  const int32_t* begins = nullptr;
  const float* cos_sin = nullptr;
  int64_t stride = 0, heads = 0, head_dim = 0, seq = 0;
  float sign = 1;
};

/// grid: x rows; backward: x groups of rows_per_block rows.
struct RmsNormArguments {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;  ///< forward
  float* inv_rms = nullptr;
  const void* dy = nullptr;  ///< backward, to the end
  void* dx = nullptr;
  float* partials = nullptr;  ///< [groups, columns]
  int64_t x_stride = 0, y_stride = 0, dy_stride = 0, dx_stride = 0;
  int64_t rows = 0, columns = 0, rows_per_block = 0;
  float epsilon = 0;
  bool accumulate_dx = false;
};

/// out[c] = round_T(sum of partials[p][c] in order of p); grid: x columns in groups of kColumns.
struct SumPartialsArguments {
  static constexpr int64_t kColumns = 128;
  const float* partials = nullptr;
  void* out = nullptr;
  int64_t count = 0, columns = 0;
};

/// Forward: grid x tokens. Backward: grid x tokens, y columns in groups of kColumns; the block of
/// an id's first token sums the rows of all its tokens.
struct EmbeddingArguments {
  static constexpr int64_t kColumns = 512;
  const void* table = nullptr;  ///< forward; dout of the backward pass
  const int32_t* ids = nullptr;
  void* out = nullptr;  ///< forward; dtable of the backward pass, zero before
  int64_t table_stride = 0, out_stride = 0;
  int64_t tokens = 0, columns = 0;
  int64_t first = 0, rows = 0;  ///< entries of the vocabulary that the table holds
};

/// grid: x tokens; loss: one block.
struct CrossEntropyArguments {
  static constexpr int64_t kLossChunk = 512;
  const float* logits = nullptr;
  const int32_t* labels = nullptr;
  float* max = nullptr;
  float* sum = nullptr;
  float* target_logit = nullptr;
  void* dlogits = nullptr;
  double* loss_sum = nullptr;
  int64_t logits_stride = 0, dlogits_stride = 0;
  int64_t tokens = 0, columns = 0, first = 0;
  float scale = 0;
};

/// grid: x pieces of kPiece elements.
struct OptimizerArguments {
  static constexpr int64_t kPiece = 4096;
  OptimizerStep step;
  OptimizerArrays arrays;
  int32_t* not_finite = nullptr;
  bool vectorized = false;  ///< every array begins at a multiple of 16 bytes
};

/// grid: x blocks of kStatisticsBlock elements; kLanes threads.
struct StatisticsArguments {
  static constexpr int64_t kLanes = 64;
  const void* gradient = nullptr;
  double* sums = nullptr;
  int64_t count = 0;
};

/// Rounding of a matrix to e4m3 in two launches with the same arguments: maxima of parts, then
/// codes and scale. Rows are whole units and begin at multiples of 16 bytes. grid: x blocks; kLanes
/// threads.
struct QuantizeArguments {
  static constexpr int64_t kUnit = 16;  ///< elements that a thread takes at a time
  static constexpr int64_t kLanes = 256;
  const void* source = nullptr;
  void* codes = nullptr;    ///< dense
  float* maxima = nullptr;  ///< [blocks]
  float* scale = nullptr;
  int64_t stride = 0, rows = 0, columns = 0, blocks = 0;
};

/// Products that cuBLASLt has no algorithm for: c = op(a) op(b) + (accumulate ? c : 0), row-major,
/// element (i, x) of op(a) at a[i * a_row + x * a_inner]. grid: x tiles of columns, y of rows.
struct MatmulArguments {
  static constexpr int64_t kTile = 64;
  static constexpr int64_t kDepth = 16;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  int64_t a_row = 0, a_inner = 0, b_inner = 0, b_column = 0, c_stride = 0;
  int64_t rows = 0, columns = 0, depth = 0;
  bool accumulate = false;
};

/// Causal grouped-query attention; shapes as of device::AttentionShape. delta and log_sum_exp:
/// [batch, q_heads, seq]. grid: forward, and backward of the queries: x tiles of queries * batch *
/// q_heads; backward of the keys: x tiles of keys * batch * kv_heads; delta: x batch * seq, y
/// q_heads.
struct AttentionArguments {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* out = nullptr;  ///< forward writes it
  const void* dout = nullptr;
  float* log_sum_exp = nullptr;
  float* delta = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  const int32_t* begins = nullptr;  ///< device::Visibility; both or none
  const int32_t* ends = nullptr;
  int64_t batch = 0, seq = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
  float scale = 0;
  int64_t tile = 0;  ///< queries and keys of a tile: a multiple of 4, 64 at most
  // Of the flash kernels alone:
  int64_t section = 1;  ///< heads that are worked on before the next ones begin
  /// 8 elements at a time begin at multiples of 16 bytes, in all operands.
  bool is_aligned = false;
};

}  // namespace headrace::device::cuda
