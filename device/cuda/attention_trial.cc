#include "device/cuda/attention_trial.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "base/random.h"
#include "base/seconds.h"
#include "device/cuda/cuda_launch.h"

namespace headrace::device::cuda {

namespace {

constexpr Bytes kAlignment{256};

/// Both ways round to the dtype several times before a result: probabilities, gradients of scores,
/// sums over query heads, the result. In the norm of a head's row that is a few roundings.
double most_difference(DType dtype) {
  return dtype == DType::f32 ? 1e-3 : 8 * (dtype == DType::bf16 ? 0x1p-8 : 0x1p-11);
}

/// The norm of a row of one head, of a result and of its difference from another.
struct Norms {
  double size = 0;
  double difference = 0;
};

}  // namespace

AttentionTrial::AttentionTrial(Device& device, const AttentionShape& shape, DType dtype,
                               Bytes workspace)
    : shape_(shape), dtype_(dtype), stream_(device.create_stream("hr-trial")) {
  const Bytes numbers = bytes_for(Elements(rows() * shape.q_heads), DType::f32);
  const auto of = [&](int64_t stride) {
    return align_up(bytes_for(Elements(rows() * stride), dtype), kAlignment);
  };
  memory_ = device.allocate(of(shape.q_stride) * 3 + of(shape.k_stride) * 3 +
                            of(shape.v_stride) * 3 + of(shape.out_stride) * 3 +
                            align_up(numbers, kAlignment) * 3 + align_up(workspace, kAlignment));
  std::byte* const inputs[] = {take_rows(shape.q_stride), take_rows(shape.k_stride),
                               take_rows(shape.v_stride), take_rows(shape.out_stride)};
  const int64_t strides[] = {shape.q_stride, shape.k_stride, shape.v_stride, shape.out_stride};
  for (size_t i = 0; i < std::size(inputs); ++i) {
    fill(inputs[i], strides[i], i);
  }
  std::byte* const delta = take(numbers);
  for (AttentionArguments* const way : {&own_, &other_}) {
    std::byte* const out = take_rows(shape.out_stride);
    auto* const log_sum_exp = reinterpret_cast<float*>(take(numbers));
    *way = attention_arguments(shape, inputs[0], inputs[1], inputs[2], out, log_sum_exp);
    way->dout = inputs[3];
    way->delta = reinterpret_cast<float*>(delta);
    way->dq = take_rows(shape.q_stride);
    way->dk = take_rows(shape.k_stride);
    way->dv = take_rows(shape.v_stride);
  }
  workspace_ = take(workspace);
}

std::byte* AttentionTrial::take(Bytes size) {
  std::byte* const taken = memory_->data() + taken_.count();
  taken_ += align_up(size, kAlignment);
  HR_CHECK(taken_ <= memory_->size(), "a trial of attention needs {} bytes", taken_);
  return taken;
}

/// Numbers as normed activations have them: scores are about 1. They come again after a prime
/// number of them, so that no two rows nearby are alike.
void AttentionTrial::fill(std::byte* data, int64_t stride, uint64_t seed) {
  constexpr size_t kNumbers = 1048573;
  const auto count = static_cast<size_t>(rows() * stride);
  Random random(seed, 0x6174);
  std::vector<uint16_t> values(std::min(kNumbers, count));
  for (uint16_t& value : values) {
    const float number = 3.4F * uniform_from(random.next_u32()) - 1.7F;
    value = dtype_ == DType::bf16 ? to_bf16(number).bits : to_f16(number).bits;
  }
  for (size_t at = 0; at < count; at += values.size()) {
    const auto piece = static_cast<int64_t>(std::min(values.size(), count - at));
    stream_->copy_async(data + at * sizeof(uint16_t), values.data(),
                        bytes_for(Elements(piece), dtype_));
  }
  stream_->synchronize();
}

std::vector<AttentionTrial::Result> AttentionTrial::results(AttentionPass pass) const {
  const auto of = [](const char* name, const void* own, const void* other, int64_t rows,
                     int64_t heads, int64_t stride) {
    const auto at = [](const void* data) {
      return static_cast<std::byte*>(const_cast<void*>(data));
    };
    return Result{name, at(own), at(other), rows, heads, stride};
  };
  const auto& [s, a, b] = std::tie(shape_, own_, other_);
  if (pass == AttentionPass::forward) {
    return {of("out", a.out, b.out, rows(), s.q_heads, s.out_stride),
            of("log_sum_exp", a.log_sum_exp, b.log_sum_exp, rows() * s.q_heads, 0, 1)};
  }
  return {of("dq", a.dq, b.dq, rows(), s.q_heads, s.q_stride),
          of("dk", a.dk, b.dk, rows(), s.kv_heads, s.k_stride),
          of("dv", a.dv, b.dv, rows(), s.kv_heads, s.v_stride)};
}

Bytes AttentionTrial::bytes_of(const Result& result) const {
  return bytes_for(Elements(result.rows * result.stride), result.heads > 0 ? dtype_ : DType::f32);
}

std::vector<std::byte> AttentionTrial::download(const std::byte* data, Bytes size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size.count()));
  stream_->copy_async(bytes.data(), data, size);
  stream_->synchronize();
  return bytes;
}

double AttentionTrial::seconds(const Post& post, AttentionPass pass,
                               const AttentionArguments& arguments) {
  return seconds_of([&] {
    post(*stream_, pass, arguments, workspace_);
    stream_->synchronize();
  });
}

/// The results, which are zero before.
std::vector<std::vector<std::byte>> AttentionTrial::run_other(const Post& post,
                                                              AttentionPass pass) {
  const std::vector<Result> all = results(pass);
  for (const Result& result : all) {
    stream_->fill_zero_async(result.other, bytes_of(result));
  }
  seconds(post, pass, other_);
  std::vector<std::vector<std::byte>> bytes;
  for (const Result& result : all) {
    bytes.push_back(download(result.other, bytes_of(result)));
  }
  return bytes;
}

AttentionTimes AttentionTrial::compare(AttentionPass pass, const Post& own, const Post& other,
                                       int rounds) {
  seconds(own, AttentionPass::forward, own_);
  if (pass == AttentionPass::backward) {
    seconds(own, pass, own_);
    other_.out = own_.out;
    other_.log_sum_exp = own_.log_sum_exp;
  }
  if (run_other(other, pass) != run_other(other, pass)) {
    throw CudaError("it has not the same bits twice");
  }
  for (const Result& result : results(pass)) {
    check(result);
  }
  AttentionTimes times{std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::infinity()};
  for (int round = 0; round < rounds; ++round) {
    times.own = std::min(times.own, seconds(own, pass, own_));
    times.other = std::min(times.other, seconds(other, pass, other_));
  }
  return times;
}

/// Row by row, so that one wrong row of many is seen; one that is small beside the others may
/// differ as they may.
void AttentionTrial::check(const Result& result) {
  const bool is_matrix = result.heads > 0;
  const DType dtype = is_matrix ? dtype_ : DType::f32;
  const int64_t width = is_matrix ? shape_.head_dim : 1;
  const std::vector<std::byte> own = download(result.own, bytes_of(result));
  const std::vector<std::byte> other = download(result.other, bytes_of(result));
  std::vector<Norms> norms;
  double squares = 0;
  for (int64_t row = 0; row < result.rows; ++row) {
    for (int64_t head = 0; head < std::max<int64_t>(1, result.heads); ++head) {
      Norms sums;
      for (int64_t i = 0; i < width; ++i) {
        const auto at =
            static_cast<size_t>((row * result.stride + head * width + i) * size_of(dtype).count());
        const double value = load_float(own.data() + at, dtype);
        const double difference = load_float(other.data() + at, dtype) - value;
        sums.size += value * value;
        sums.difference += difference * difference;
      }
      squares += sums.size;
      norms.push_back(sums);
    }
  }
  const double usual = squares / static_cast<double>(std::max<size_t>(1, norms.size()));
  const double most = most_difference(dtype);
  for (const Norms& each : norms) {
    const double size = std::max(each.size, usual);
    if (!(each.difference <= most * most * size)) {  // also a NaN
      throw CudaError(fmt::format("its {} differs from our kernels' by {:.2g} of a row",
                                  result.name, std::sqrt(each.difference / size)));
    }
  }
}

}  // namespace headrace::device::cuda
