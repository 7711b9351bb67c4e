#pragma once

#include "device/kernels.h"

/// Preconditions of Kernels, one function for each, checked when work is posted: they throw
/// InternalError with the values.
namespace headrace::device {

inline constexpr int64_t kScratchAlignment = 64;
/// A kernel was given the scratch that it said it needs.
void check_scratch(const Workspace& scratch, Bytes needed);

/// Shapes alone, for questions about scratch.
void check_matmul_shapes(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                         const Matrix& c);
void check_attention_shape(const AttentionShape& shape, DType dtype);

void check_matmul(const Matrix& a, const Matrix& b, const Matrix& c);
void check_matmul_bias(const Matrix& a, const void* bias, const Matrix& c);
void check_matmul_scaled_shapes(const ScaledMatrix& a, const ScaledMatrix& b, const Matrix& c);
void check_matmul_scaled(const ScaledMatrix& a, const ScaledMatrix& b, const void* bias,
                         const Matrix& c, bool accumulate);
void check_quantize(const Matrix& source, const ScaledMatrix& target);
/// The rows of a table lie in its vocabulary.
void check_table_range(TableRange range, int64_t rows);
void check_embedding_forward(const Matrix& table, TableRange range, const int32_t* ids,
                             const Matrix& out);
void check_embedding_backward(const Matrix& dout, const int32_t* ids, const Matrix& dtable,
                              TableRange range);
void check_rms_norm_forward(const Matrix& x, const void* weight, float epsilon, const Matrix& y,
                            float* inv_rms);
void check_rms_norm_backward(const Matrix& dy, const Matrix& x, const void* weight,
                             const float* inv_rms, const Matrix& dx, void* dweight);
void check_rope(const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq,
                const float* cos_sin);
void check_swiglu_forward(const Matrix& gate, const Matrix& up, const Matrix& out);
void check_swiglu_backward(const Matrix& dout, const Matrix& gate, const Matrix& up,
                           const Matrix& dgate, const Matrix& dup);
void check_add(const Matrix& a, const Matrix& b, const Matrix& out);
void check_add_bias(const Matrix& x, const void* bias);
void check_bias_gradient(const Matrix& dy, void* dbias);
void check_accumulate(const void* source, DType source_dtype, float* target, Elements count);
void check_cast(const void* source, DType source_dtype, void* target, DType target_dtype,
                Elements count);
void check_optimizer_update(const OptimizerStep& step, const OptimizerArrays& arrays,
                            const int32_t* not_finite);
void check_gradient_statistics(const void* gradient, DType dtype, Elements count,
                               const double* sums);
void check_attention_forward(const AttentionShape& shape, const void* q, const void* k,
                             const void* v, void* out, float* log_sum_exp);
void check_attention_backward(const AttentionShape& shape, const void* q, const void* k,
                              const void* v, const void* out, const void* dout,
                              const float* log_sum_exp, void* dq, void* dk, void* dv);
void check_cross_entropy_start(const CrossEntropyState& state, int64_t tokens);
void check_cross_entropy_tile(const Matrix& logits, int64_t first, const int32_t* labels,
                              const CrossEntropyState& state);
void check_cross_entropy_loss(const CrossEntropyState& state, const int32_t* labels, int64_t tokens,
                              double* loss_sum);
void check_cross_entropy_gradient(const Matrix& logits, int64_t first, const int32_t* labels,
                                  const CrossEntropyState& state, const Matrix& dlogits);

}  // namespace headrace::device
