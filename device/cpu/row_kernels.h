#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/units.h"
#include "device/kernels.h"

/// The element and row kernels of the CPU device, synchronous: the functions of device::Kernels
/// with the same names and parameters, less the stream. Bodies come from device/kernels/*.inl.h,
/// compiled for several instruction sets, the best one taken at run time. They run on the OpenMP
/// threads of the calling thread (base/parallel.h) and give the same bits for any number of
/// threads, address, stride and instruction set. Broken preconditions are InternalErrors; pointers
/// must be aligned to their element. Thread-safe for different outputs.
namespace headrace::device::cpu {

void embedding_forward(const Matrix& table, TableRange range, const int32_t* ids,
                       const Matrix& out);
/// Only rows of `dtable` with an id are summed; the others are set to zero. Allocates
/// 4 * (tokens + rows of dtable) bytes while it runs.
void embedding_backward(const Matrix& dout, const int32_t* ids, const Matrix& dtable,
                        TableRange range);

void rms_norm_forward(const Matrix& x, const void* weight, float epsilon, const Matrix& y,
                      float* inv_rms);
void rms_norm_backward(const Matrix& dy, const Matrix& x, const void* weight, const float* inv_rms,
                       const Matrix& dx, bool accumulate_dx, void* dweight, Workspace scratch);
Bytes rms_norm_backward_scratch(int64_t rows, int64_t columns);

void rope(const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq, const int32_t* begins,
          const float* cos_sin, bool inverse);

void swiglu_forward(const Matrix& gate, const Matrix& up, const Matrix& out);
void swiglu_backward(const Matrix& dout, const Matrix& gate, const Matrix& up, const Matrix& dgate,
                     const Matrix& dup);

void add(const Matrix& a, const Matrix& b, const Matrix& out);
void add_bias(const Matrix& x, const void* bias);
void bias_gradient(const Matrix& dy, void* dbias);
void cast(const void* source, DType source_dtype, void* target, DType target_dtype, Elements count);

/// Codes and scale; scratch: kQuantizeScratch.
void quantize(const Matrix& source, const ScaledMatrix& target, Workspace scratch);

void cross_entropy_start(const CrossEntropyState& state, int64_t tokens);
/// Tokens with an ignored label are skipped: their state stays as started.
void cross_entropy_tile(const Matrix& logits, int64_t first, const int32_t* labels,
                        const CrossEntropyState& state);
void cross_entropy_loss(const CrossEntropyState& state, const int32_t* labels, int64_t tokens,
                        double* loss_sum);
void cross_entropy_gradient(const Matrix& logits, int64_t first, const int32_t* labels,
                            const CrossEntropyState& state, float scale, const Matrix& dlogits);

/// target = (overwrite ? 0 : target) + source, in fp32: how gradients are gathered on the host.
void accumulate(const void* source, DType source_dtype, float* target, Elements count,
                bool overwrite);

struct GradientStats {
  double sum_of_squares = 0;  ///< NaN or inf unless all_finite
  bool all_finite = true;
};
/// One pass over `gradient`; double sums in a fixed order.
GradientStats gradient_stats(const float* gradient, Elements count);

/// Returns whether every new master and moment is finite.
bool optimizer_update(const OptimizerStep& step, const OptimizerArrays& arrays);
/// sums[b]: as gradient_stats of each block.
void gradient_statistics(const void* gradient, DType dtype, Elements count, double* sums);

}  // namespace headrace::device::cpu
