#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/units.h"
#include "device/device.h"
#include "device/optimizer.h"

namespace headrace::device {

/// A dense matrix in device memory, row-major: element (r, c) is at data[r * stride + c].
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;  ///< f32, bf16 or f16
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  ///< elements; >= columns
};

/// A dense matrix in e4m3 (device/kernels/e4m3.inl.h) with one scale for all of it: element (r, c)
/// is the value of codes[r * columns + c] times *scale, which is a power of two.
struct ScaledMatrix {
  void* codes = nullptr;   ///< one byte each; 16-byte aligned
  float* scale = nullptr;  ///< on the device
  int64_t rows = 0;
  int64_t columns = 0;
};
/// Its codes as a matrix of u8.
inline Matrix codes_of(const ScaledMatrix& matrix) {
  return {matrix.codes, DType::u8, matrix.rows, matrix.columns, matrix.columns};
}
/// Products of ScaledMatrix take rows and columns that are multiples of this, as cuBLASLt does.
inline constexpr int64_t kScaledUnit = 16;
/// Scratch of Kernels::quantize: maxima of so many parts of a matrix, at most.
inline constexpr int64_t kQuantizeParts = 1024;
inline constexpr Bytes kQuantizeScratch{kQuantizeParts * int64_t{sizeof(float)}};

/// Scratch memory on the device, 64-byte aligned.
struct Workspace {
  std::byte* data = nullptr;
  Bytes size;
};

/// What queries see of the keys before them, where that is not all: documents share the sequence,
/// or there is a sliding window. Both arrays are [batch, seq], count positions from the sequence's
/// first, are on the device and nowhere descend. Null: all.
struct Visibility {
  const int32_t* begins = nullptr;  ///< the first key that a query sees
  const int32_t* ends = nullptr;    ///< of a key, the query behind the last one that sees it

  bool operator==(const Visibility&) const = default;
};

/// Shape of causal grouped-query attention over a batch of equally long sequences.
/// q, out, dq, dout: [batch * seq, q_heads * head_dim]; k, v, dk, dv: [batch * seq, kv_heads *
/// head_dim], rows dense or strided by the given row strides (elements).
struct AttentionShape {
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;  ///< divides q_heads
  int64_t head_dim = 0;
  float scale = 0;  ///< usually 1 / sqrt(head_dim)
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t out_stride = 0;
  Visibility visible{};

  bool operator==(const AttentionShape&) const = default;
};

/// Which entries of the vocabulary the rows of an embedding table hold: row r is entry first + r of
/// `vocabulary`.
struct TableRange {
  int64_t first = 0;
  int64_t vocabulary = 0;
};

/// Running softmax statistics of cross-entropy over vocabulary tiles, one entry per token.
struct CrossEntropyState {
  float* max = nullptr;           ///< [tokens]
  float* sum = nullptr;           ///< [tokens] of exp(logit - max)
  float* target_logit = nullptr;  ///< [tokens]
};

/// Arithmetic of the device, posted to a stream. All functions return at once; pointers are device
/// memory and must stay valid until the work has run. Activations, weights and gradients have dtype
/// f32, bf16 or f16 ("T"); sums run in fp32. Results are the same bits for the same input on one
/// machine, whatever the thread count, address and stream. Preconditions are checked when posted
/// (InternalError).
class Kernels {
 public:
  virtual ~Kernels() = default;

  // --- matrix products -------------------------------------------------------------------------
  /// c = op_a(a) * op_b(b) + (accumulate ? c : 0); op transposes where asked. a and b share a
  /// dtype; c has it or is f32. Accumulates in fp32.
  virtual void matmul(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                      bool transpose_b, const Matrix& c, bool accumulate, Workspace scratch) = 0;
  /// c = op_a(a) * op_b(b) + bias for every row; bias: [c.columns] in the dtype of a, b and c. The
  /// sum may be rounded once or twice. Scratch as of matmul.
  virtual void matmul_bias(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                           bool transpose_b, const void* bias, const Matrix& c,
                           Workspace scratch) = 0;
  /// Scratch that matmul of these shapes may need.
  virtual Bytes matmul_scratch(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                               const Matrix& c) const = 0;

  /// target = source rounded to e4m3, to nearest even, with the largest power of two
  /// as its scale that keeps every element in range. Where one is NaN or infinite it is NaN there,
  /// the scale is 1 and the others end at the largest value. Source and target have one shape, a
  /// multiple of kScaledUnit each way; source rows begin at multiples of 16 bytes. scratch:
  /// kQuantizeScratch.
  virtual void quantize(Stream& stream, const Matrix& source, const ScaledMatrix& target,
                        Workspace scratch) = 0;
  /// c = a * b^T + (accumulate ? c : 0), or + bias for every row where it is not null: [c.columns]
  /// in the dtype of c, which is bf16 or f16 then, and else may be f32 too. fp32 sums; rows of c
  /// begin at multiples of 16 bytes.
  virtual void matmul_scaled(Stream& stream, const ScaledMatrix& a, const ScaledMatrix& b,
                             const void* bias, const Matrix& c, bool accumulate,
                             Workspace scratch) = 0;
  virtual Bytes matmul_scaled_scratch(const ScaledMatrix& a, const ScaledMatrix& b,
                                      const Matrix& c) const = 0;

  // --- embedding -------------------------------------------------------------------------------
  /// out[t] = table[ids[t] - first] for the ids that the table holds; the other rows of out are
  /// left as they are. ids: [out.rows], checked against the vocabulary before.
  virtual void embedding_forward(Stream& stream, const Matrix& table, TableRange range,
                                 const int32_t* ids, const Matrix& out) = 0;
  /// dtable[r] = sum over t with ids[t] == first + r of dout[t], in order of t, fp32 sums;
  /// overwrites dtable.
  virtual void embedding_backward(Stream& stream, const Matrix& dout, const int32_t* ids,
                                  const Matrix& dtable, TableRange range) = 0;

  // --- elementwise and row-wise ----------------------------------------------------------------
  /// y = round_T(x * inv_rms) * weight, as Hugging Face's LlamaRMSNorm; inv_rms: [x.rows] fp32 out.
  virtual void rms_norm_forward(Stream& stream, const Matrix& x, const void* weight, float epsilon,
                                const Matrix& y, float* inv_rms) = 0;
  /// dx = gradient (added to dx where accumulate_dx); dweight (dtype T, [columns]) is overwritten.
  /// scratch: rms_norm_backward_scratch(rows, columns).
  virtual void rms_norm_backward(Stream& stream, const Matrix& dy, const Matrix& x,
                                 const void* weight, const float* inv_rms, const Matrix& dx,
                                 bool accumulate_dx, void* dweight, Workspace scratch) = 0;
  virtual Bytes rms_norm_backward_scratch(int64_t rows, int64_t columns) const = 0;
  /// Rotary embedding in place ("rotate half" layout) on x: [batch * seq, heads * head_dim]. The
  /// position of row r is r % seq, less begins[r] where documents share a sequence (the first
  /// position of its document, [batch * seq]; else null). cos_sin: [seq, head_dim] fp32, first half
  /// cos, second half sin. inverse rotates back (the backward pass).
  virtual void rope(Stream& stream, const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq,
                    const int32_t* begins, const float* cos_sin, bool inverse) = 0;
  /// out = silu(gate) * up.
  virtual void swiglu_forward(Stream& stream, const Matrix& gate, const Matrix& up,
                              const Matrix& out) = 0;
  /// dgate and dup may alias gate and up.
  virtual void swiglu_backward(Stream& stream, const Matrix& dout, const Matrix& gate,
                               const Matrix& up, const Matrix& dgate, const Matrix& dup) = 0;
  /// out = a + b; out may alias a or b.
  virtual void add(Stream& stream, const Matrix& a, const Matrix& b, const Matrix& out) = 0;
  /// x[r] += bias for every row; bias: [columns] dtype T.
  virtual void add_bias(Stream& stream, const Matrix& x, const void* bias) = 0;
  /// dbias[c] = sum over rows of dy[r][c] (fp32 sums, dtype T out), overwritten.
  virtual void bias_gradient(Stream& stream, const Matrix& dy, void* dbias) = 0;
  /// target = source, or target + source in fp32; source: f32, bf16 or f16.
  virtual void accumulate(Stream& stream, const void* source, DType source_dtype, float* target,
                          Elements count, bool overwrite) = 0;
  /// target = source, converting between f32, bf16 and f16.
  virtual void cast(Stream& stream, const void* source, DType source_dtype, void* target,
                    DType target_dtype, Elements count) = 0;

  // --- optimizer -------------------------------------------------------------------------------
  /// One step over the arrays, which are in device memory: the same bits as engine::update().
  /// *not_finite becomes 1 where a new master or moment is not finite, and else stays.
  virtual void optimizer_update(Stream& stream, const OptimizerStep& step,
                                const OptimizerArrays& arrays, int32_t* not_finite) = 0;
  /// sums[b] = sum of the squares of block b of kStatisticsBlock elements, in double: NaN or inf
  /// exactly where one is not finite; the same bits as cpu::gradient_stats().
  virtual void gradient_statistics(Stream& stream, const void* gradient, DType dtype,
                                   Elements count, double* sums) = 0;

  // --- attention -------------------------------------------------------------------------------
  /// out = softmax(scale * q k^T, causal, of what is visible) v per head; log_sum_exp: [batch,
  /// q_heads, seq] fp32 out. Tiles of keys that no query of a tile sees take no time.
  virtual void attention_forward(Stream& stream, const AttentionShape& shape, DType dtype,
                                 const void* q, const void* k, const void* v, void* out,
                                 float* log_sum_exp, Workspace scratch) = 0;
  /// dq, dk, dv are overwritten; their row strides are those of q, k, v; dout has out's.
  virtual void attention_backward(Stream& stream, const AttentionShape& shape, DType dtype,
                                  const void* q, const void* k, const void* v, const void* out,
                                  const void* dout, const float* log_sum_exp, void* dq, void* dk,
                                  void* dv, Workspace scratch) = 0;
  /// Scratch for forward and backward; linear in seq, but for what a library may take within its
  /// limit (GpuOptions). Who computes the shape is decided here, at the first call.
  virtual Bytes attention_scratch(const AttentionShape& shape, DType dtype) const = 0;
  /// Who computes attention, and why; empty where there is no choice.
  virtual std::string attention_description() const { return ""; }

  // --- cross-entropy over vocabulary tiles
  // --------------------------------------------------------
  /// Starts the running statistics: max = -inf, sum = 0, target = 0.
  virtual void cross_entropy_start(Stream& stream, const CrossEntropyState& state,
                                   int64_t tokens) = 0;
  /// Folds a tile of logits [tokens, tile] (fp32) for vocabulary entries first.. into the state.
  virtual void cross_entropy_tile(Stream& stream, const Matrix& logits, int64_t first,
                                  const int32_t* labels, const CrossEntropyState& state) = 0;
  /// *loss_sum = sum over tokens with label != -100 of (max + log(sum) - target), in token order,
  /// double on the device.
  virtual void cross_entropy_loss(Stream& stream, const CrossEntropyState& state,
                                  const int32_t* labels, int64_t tokens, double* loss_sum) = 0;
  /// dlogits (dtype T, may not alias logits) = (softmax - onehot) * scale for the same tile; 0 for
  /// ignored labels.
  virtual void cross_entropy_gradient(Stream& stream, const Matrix& logits, int64_t first,
                                      const int32_t* labels, const CrossEntropyState& state,
                                      float scale, const Matrix& dlogits) = 0;
};

}  // namespace headrace::device
