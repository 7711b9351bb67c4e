#pragma once

#include "device/cuda/kernels/elementwise_grid.inl.h"
#include "device/kernels/cross_entropy.inl.h"
#include "device/kernels/rms_norm.inl.h"

namespace headrace::device::cuda {

template <class T>
struct Rope {
  using Arguments = RopeArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t row = block.index_x();
    const int64_t position = kernels::position_of(row, arguments.seq, arguments.begins);
    const float* angles = arguments.cos_sin + position * arguments.head_dim;
    kernels::rope_row(block, static_cast<T*>(arguments.x) + row * arguments.stride, arguments.heads,
                      arguments.head_dim, angles, arguments.sign);
  }
};

template <class T>
struct RmsNormForward {
  using Arguments = RmsNormArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t row = block.index_x();
    const float inv_rms = kernels::rms_norm_forward_row(
        block, static_cast<const T*>(arguments.x) + row * arguments.x_stride,
        static_cast<const T*>(arguments.weight), arguments.epsilon,
        static_cast<T*>(arguments.y) + row * arguments.y_stride, arguments.columns);
    if (block.is_first_thread()) {
      arguments.inv_rms[row] = inv_rms;
    }
  }
};

/// Sums the rows of one group into its partial; SumPartials ends the sum over the groups.
template <class T>
struct RmsNormBackward {
  using Arguments = RmsNormArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t begin = block.index_x() * arguments.rows_per_block;
    const int64_t end = lesser(begin + arguments.rows_per_block, arguments.rows);
    float* const partial = arguments.partials + block.index_x() * arguments.columns;
    kernels::zero_row(block, partial, arguments.columns);
    for (int64_t row = begin; row < end; ++row) {
      if (arguments.accumulate_dx) {
        run_row<true>(block, arguments, row, partial);
      } else {
        run_row<false>(block, arguments, row, partial);
      }
    }
  }

 private:
  template <bool kAccumulate, class Block>
  static HR_KERNEL void run_row(const Block& block, const Arguments& arguments, int64_t row,
                                float* partial) {
    kernels::rms_norm_backward_row<kAccumulate>(
        block, static_cast<const T*>(arguments.dy) + row * arguments.dy_stride,
        static_cast<const T*>(arguments.x) + row * arguments.x_stride,
        static_cast<const T*>(arguments.weight), arguments.inv_rms[row],
        static_cast<T*>(arguments.dx) + row * arguments.dx_stride, partial, arguments.columns);
  }
};

template <class T>
struct SumPartials {
  using Arguments = SumPartialsArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t first = block.index_x() * Arguments::kColumns;
    const int64_t columns = lesser(Arguments::kColumns, arguments.columns - first);
    float* const sum = block.template shared<float>();
    kernels::zero_row(block, sum, columns);
    for (int64_t p = 0; p < arguments.count; ++p) {
      kernels::accumulate_row(block, arguments.partials + p * arguments.columns + first, sum,
                              columns);
    }
    kernels::cast_row(block, static_cast<const float*>(sum), static_cast<T*>(arguments.out) + first,
                      columns);
  }
};

/// Lane l of a column sums the rows l, l + kLanes, ...; the lanes are added in order.
template <class T>
struct BiasGradient {
  using Arguments = BiasGradientArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    constexpr int64_t kColumns = Arguments::kColumns;
    constexpr int64_t kLanes = Arguments::kLanes;
    const int64_t first = block.index_x() * kColumns;
    const int64_t columns = lesser(kColumns, arguments.columns - first);
    const T* const dy = static_cast<const T*>(arguments.dy) + first;
    float* const sums = block.template shared<float>();  // [kLanes, kColumns]
    block.for_each(kLanes * kColumns, [=](int64_t i) HR_KERNEL_LAMBDA {
      const int64_t column = i % kColumns;
      float sum = 0;
      for (int64_t row = i / kColumns; column < columns && row < arguments.rows; row += kLanes) {
        sum += kernels::to_f32(dy[row * arguments.stride + column]);
      }
      sums[i] = sum;
    });
    block.sync();
    block.for_each(columns, [=](int64_t column) HR_KERNEL_LAMBDA {
      float sum = sums[column];
      for (int64_t lane = 1; lane < kLanes; ++lane) {
        sum += sums[lane * kColumns + column];
      }
      static_cast<T*>(arguments.dbias)[first + column] = kernels::from_f32<T>(sum);
    });
  }
};

template <class T>
struct EmbeddingForward {
  using Arguments = EmbeddingArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t token = block.index_x();
    const int64_t row = arguments.ids[token] - arguments.first;
    if (row < 0 || row >= arguments.rows) {
      return;
    }
    kernels::copy_row(block, static_cast<const T*>(arguments.table) + row * arguments.table_stride,
                      static_cast<T*>(arguments.out) + token * arguments.out_stride,
                      arguments.columns);
  }
};

/// One block per token and group of columns: that of an id's first token sums the rows of all the
/// id's tokens, in order of t, the others end at once.
template <class T>
struct EmbeddingBackward {
  using Arguments = EmbeddingArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t token = block.index_x();
    const int32_t* const ids = arguments.ids;
    const int32_t id = ids[token];
    const int64_t row = id - arguments.first;
    if (row < 0 || row >= arguments.rows) {
      return;
    }
    const auto is_same = [=](int64_t t) HR_KERNEL_LAMBDA { return ids[t] == id; };
    if (block.first_index(0, token, is_same) != token) {
      return;
    }
    const int64_t first = block.index_y() * Arguments::kColumns;
    const int64_t columns = lesser(Arguments::kColumns, arguments.columns - first);
    const T* const dout = static_cast<const T*>(arguments.table) + first;
    float* const sum = block.template shared<float>();
    kernels::cast_row(block, dout + token * arguments.table_stride, sum, columns);
    for (int64_t t = block.first_index(token + 1, arguments.tokens, is_same); t < arguments.tokens;
         t = block.first_index(t + 1, arguments.tokens, is_same)) {
      kernels::accumulate_row(block, dout + t * arguments.table_stride, sum, columns);
    }
    kernels::cast_row(block, static_cast<const float*>(sum),
                      static_cast<T*>(arguments.out) + row * arguments.out_stride + first, columns);
  }
};

struct CrossEntropyStart {
  using Arguments = CrossEntropyArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    constexpr int64_t kTokens = Arguments::kLossChunk;
    const int64_t first = block.index_x() * kTokens;
    float* const max = arguments.max + first;
    float* const sum = arguments.sum + first;
    float* const target = arguments.target_logit + first;
    block.for_each(lesser(kTokens, arguments.tokens - first), [=](int64_t i) HR_KERNEL_LAMBDA {
      max[i] = -__builtin_huge_valf();
      sum[i] = 0;
      target[i] = 0;
    });
  }
};

struct CrossEntropyTile {
  using Arguments = CrossEntropyArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t token = block.index_x();
    const int32_t label = arguments.labels[token];
    if (label == kernels::kIgnoredLabel) {
      return;
    }
    const kernels::SoftmaxState after = kernels::cross_entropy_tile_row(
        block, arguments.logits + token * arguments.logits_stride, arguments.columns,
        arguments.first, label,
        {arguments.max[token], arguments.sum[token], arguments.target_logit[token]});
    // The reductions have synchronized: every thread has read the state.
    if (block.is_first_thread()) {
      arguments.max[token] = after.max;
      arguments.sum[token] = after.sum;
      arguments.target_logit[token] = after.target_logit;
    }
  }
};

/// One block: losses of a chunk side by side, their sum in the order of the tokens.
struct CrossEntropyLoss {
  using Arguments = CrossEntropyArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    double* const losses = block.template shared<double>();
    double sum = 0;
    for (int64_t first = 0; first < arguments.tokens; first += Arguments::kLossChunk) {
      const int64_t count = lesser(Arguments::kLossChunk, arguments.tokens - first);
      block.for_each(count, [=](int64_t i) HR_KERNEL_LAMBDA {
        const int64_t t = first + i;
        losses[i] = arguments.labels[t] == kernels::kIgnoredLabel
                        ? 0.0
                        : kernels::cross_entropy_loss_of(
                              {arguments.max[t], arguments.sum[t], arguments.target_logit[t]});
      });
      block.sync();
      for (int64_t i = 0; block.is_first_thread() && i < count; ++i) {
        sum += losses[i];
      }
      block.sync();
    }
    if (block.is_first_thread()) {
      *arguments.loss_sum = sum;
    }
  }
};

template <class T>
struct CrossEntropyGradient {
  using Arguments = CrossEntropyArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t token = block.index_x();
    kernels::cross_entropy_gradient_row(
        block, arguments.logits + token * arguments.logits_stride, arguments.columns,
        arguments.first, arguments.labels[token],
        {arguments.max[token], arguments.sum[token], arguments.target_logit[token]},
        arguments.scale, static_cast<T*>(arguments.dlogits) + token * arguments.dlogits_stride);
  }
};

}  // namespace headrace::device::cuda
