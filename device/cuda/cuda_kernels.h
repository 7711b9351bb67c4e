#pragma once

#include "device/cuda/cuda_matmul.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/cudnn_attention.h"
#include "device/gpu.h"
#include "device/kernels.h"

namespace headrace::device::cuda {

/// Kernels of the CUDA device: checks the arguments, lays the work out over a grid and launches it.
/// No sum uses atomics, so results are the same bits on one machine; those of matrix products are
/// for equal strides and for addresses that are multiples of 16 bytes, or of the same power of two
/// below it. The same holds of attention by cuDNN. Streams must be CudaStreams. Thread-safe.
class CudaKernels : public Kernels {
 public:
  /// GPU and device, which is used from the first call on, must outlive the kernels.
  CudaKernels(const Gpu& gpu, Device& device, const GpuOptions& options,
              const OpenCudnn& open_cudnn);

  void matmul(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
              const Matrix& c, bool accumulate, Workspace scratch) override;
  void matmul_bias(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                   bool transpose_b, const void* bias, const Matrix& c, Workspace scratch) override;
  Bytes matmul_scratch(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                       const Matrix& c) const override;
  void quantize(Stream& stream, const Matrix& source, const ScaledMatrix& target,
                Workspace scratch) override;
  void matmul_scaled(Stream& stream, const ScaledMatrix& a, const ScaledMatrix& b, const void* bias,
                     const Matrix& c, bool accumulate, Workspace scratch) override;
  Bytes matmul_scaled_scratch(const ScaledMatrix& a, const ScaledMatrix& b,
                              const Matrix& c) const override;

  void embedding_forward(Stream& stream, const Matrix& table, TableRange range, const int32_t* ids,
                         const Matrix& out) override;
  void embedding_backward(Stream& stream, const Matrix& dout, const int32_t* ids,
                          const Matrix& dtable, TableRange range) override;

  void rms_norm_forward(Stream& stream, const Matrix& x, const void* weight, float epsilon,
                        const Matrix& y, float* inv_rms) override;
  void rms_norm_backward(Stream& stream, const Matrix& dy, const Matrix& x, const void* weight,
                         const float* inv_rms, const Matrix& dx, bool accumulate_dx, void* dweight,
                         Workspace scratch) override;
  Bytes rms_norm_backward_scratch(int64_t rows, int64_t columns) const override;
  void rope(Stream& stream, const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq,
            const int32_t* begins, const float* cos_sin, bool inverse) override;
  void swiglu_forward(Stream& stream, const Matrix& gate, const Matrix& up,
                      const Matrix& out) override;
  void swiglu_backward(Stream& stream, const Matrix& dout, const Matrix& gate, const Matrix& up,
                       const Matrix& dgate, const Matrix& dup) override;
  void add(Stream& stream, const Matrix& a, const Matrix& b, const Matrix& out) override;
  void add_bias(Stream& stream, const Matrix& x, const void* bias) override;
  void bias_gradient(Stream& stream, const Matrix& dy, void* dbias) override;
  void accumulate(Stream& stream, const void* source, DType source_dtype, float* target,
                  Elements count, bool overwrite) override;
  void cast(Stream& stream, const void* source, DType source_dtype, void* target,
            DType target_dtype, Elements count) override;

  void optimizer_update(Stream& stream, const OptimizerStep& step, const OptimizerArrays& arrays,
                        int32_t* not_finite) override;
  void gradient_statistics(Stream& stream, const void* gradient, DType dtype, Elements count,
                           double* sums) override;

  void attention_forward(Stream& stream, const AttentionShape& shape, DType dtype, const void* q,
                         const void* k, const void* v, void* out, float* log_sum_exp,
                         Workspace scratch) override;
  void attention_backward(Stream& stream, const AttentionShape& shape, DType dtype, const void* q,
                          const void* k, const void* v, const void* out, const void* dout,
                          const float* log_sum_exp, void* dq, void* dk, void* dv,
                          Workspace scratch) override;
  Bytes attention_scratch(const AttentionShape& shape, DType dtype) const override;
  std::string attention_description() const override { return cudnn_.description(); }

  void cross_entropy_start(Stream& stream, const CrossEntropyState& state, int64_t tokens) override;
  void cross_entropy_tile(Stream& stream, const Matrix& logits, int64_t first,
                          const int32_t* labels, const CrossEntropyState& state) override;
  void cross_entropy_loss(Stream& stream, const CrossEntropyState& state, const int32_t* labels,
                          int64_t tokens, double* loss_sum) override;
  void cross_entropy_gradient(Stream& stream, const Matrix& logits, int64_t first,
                              const int32_t* labels, const CrossEntropyState& state, float scale,
                              const Matrix& dlogits) override;

 private:
  /// Arguments checked; returns as CudaMatmul::post whether the bias was added.
  bool multiply(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                bool transpose_b, const Matrix& c, bool accumulate, const void* bias,
                Workspace scratch);

  const Gpu& gpu_;
  CudaMatmul matmul_;
  mutable CudnnAttention cudnn_;
};

}  // namespace headrace::device::cuda
