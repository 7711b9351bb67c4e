// What a GPU reaches with our kernels, each beside its limit measured in the same run: memory-bound
// kernels beside a copy within the device, a block beside the matrix products it is made of, copies
// over the link in one direction beside both at once. Prints a Markdown table.
//   gpu_bench           the first GPU
//   gpu_bench --quick   small sizes, each measured once: shows that everything runs
//   gpu_bench --cpu     the same on the CPU device
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/random.h"
#include "base/seconds.h"
#include "device/device.h"
#include "device/gpu.h"
#include "device/kernels.h"
#include "model/model_config.h"
#include "model/network.h"
#include "model/presets.h"
#include "tiers/host_memory.h"

namespace headrace {
namespace {

using device::Matrix;

struct Sizes {
  int64_t tokens = 4096;
  int64_t hidden = 4096;
  int64_t intermediate = 14336;
  int64_t heads = 32;
  int64_t kv_heads = 8;
  int64_t head_dim = 128;
  int64_t vocab_tile = 8192;
  Bytes copy = kGiB;
  double seconds = 0.2;  ///< of one measurement, at least
};

Sizes small_block() {
  return {128, 512, 1408, 8, 4, 64, 512, kMiB};
}

Sizes quick_sizes() {
  return {128, 128, 256, 4, 2, 32, 128, kMiB, 0};
}

class Bench {
 public:
  Bench(device::Device& device, const Sizes& sizes)
      : sizes_(sizes), device_(device), stream_(device.create_stream("bench")) {
    std::vector<uint16_t> values(size_t{1} << 20);
    Random random(1, 0);
    for (uint16_t& value : values) {
      value = to_bf16(random.normal()).bits;
    }
    pattern_ = std::move(values);
  }

  const Sizes& sizes() const { return sizes_; }
  device::Device& device() { return device_; }
  device::Stream& stream() { return *stream_; }
  device::Kernels& kernels() { return device_.kernels(); }

  /// Device memory with bf16 numbers in it: zeros would flatter products.
  std::byte* take(Bytes size) {
    memory_.push_back(device_.allocate(size));
    std::byte* const data = memory_.back()->data();
    const Bytes piece(static_cast<int64_t>(pattern_.size() * sizeof(uint16_t)));
    for (Bytes at; at < size; at += piece) {
      stream_->copy_async(data + at.count(), pattern_.data(), std::min(piece, size - at));
    }
    stream_->synchronize();
    return data;
  }
  Matrix matrix(int64_t rows, int64_t columns, DType dtype = DType::bf16) {
    return {take(bytes_for(Elements(rows) * columns, dtype)), dtype, rows, columns, columns};
  }
  float* floats(int64_t count) {
    return reinterpret_cast<float*>(take(bytes_for(Elements(count), DType::f32)));
  }
  void release() { memory_.clear(); }

  /// Seconds of one call of post(), which posts to stream(): over as many as fill the time.
  double seconds_of(const std::function<void()>& post) {
    post();
    stream_->synchronize();
    for (int64_t count = 1;; count *= 2) {
      const auto begin = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < count; ++i) {
        post();
      }
      stream_->synchronize();
      const double seconds = seconds_since(begin);
      if (seconds >= sizes_.seconds) {
        return seconds / static_cast<double>(count);
      }
    }
  }

 private:
  Sizes sizes_;
  device::Device& device_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<uint16_t> pattern_;
  std::vector<std::unique_ptr<device::Memory>> memory_;
};

void print_row(const std::string& name, double rate, const char* unit, double limit,
               const char* limit_name) {
  fmt::print("| {} | {:.1f} {} | {:.0f} % of {} |\n", name, rate, unit, 100 * rate / limit,
             limit_name);
}

/// Bytes per second of a copy within the device, reads and writes counted.
double measure_copy(Bench& bench) {
  const Bytes size = bench.sizes().copy;
  std::byte* const from = bench.take(size);
  std::byte* const to = bench.take(size);
  const double seconds = bench.seconds_of([&] { bench.stream().copy_async(to, from, size); });
  const double rate = 2 * static_cast<double>(size.count()) / seconds;
  print_row("copy within the device", rate / 1e9, "GB/s", rate / 1e9, "itself");
  bench.release();
  return rate;
}

/// One memory-bound kernel; `elements` of 2 bytes are read or written.
void measure_kernel(Bench& bench, double copy_rate, const std::string& name, double elements,
                    const std::function<void()>& post) {
  const double rate = 2 * elements / bench.seconds_of(post);
  print_row(name, rate / 1e9, "GB/s", copy_rate / 1e9, "copy");
}

void measure_elementwise(Bench& bench, double copy_rate) {
  const Sizes& s = bench.sizes();
  device::Stream& stream = bench.stream();
  const Matrix a = bench.matrix(s.tokens, s.intermediate);
  const Matrix b = bench.matrix(s.tokens, s.intermediate);
  const Matrix c = bench.matrix(s.tokens, s.intermediate);
  const double n = static_cast<double>(s.tokens * s.intermediate);
  const Elements count(s.tokens * s.intermediate);
  float* const sums = bench.floats(count.count());
  device::Kernels& kernels = bench.kernels();
  measure_kernel(bench, copy_rate, "add", 3 * n, [&] { kernels.add(stream, a, b, c); });
  measure_kernel(bench, copy_rate, "swiglu forward", 3 * n,
                 [&] { kernels.swiglu_forward(stream, a, b, c); });
  measure_kernel(bench, copy_rate, "swiglu backward", 5 * n,
                 [&] { kernels.swiglu_backward(stream, c, a, b, a, b); });
  measure_kernel(bench, copy_rate, "accumulate bf16 into fp32", 5 * n,
                 [&] { kernels.accumulate(stream, a.data, DType::bf16, sums, count, false); });
  measure_kernel(bench, copy_rate, "cast fp32 to bf16", 3 * n,
                 [&] { kernels.cast(stream, sums, DType::f32, b.data, DType::bf16, count); });
  bench.release();
}

void measure_rows(Bench& bench, double copy_rate) {
  const Sizes& s = bench.sizes();
  device::Stream& stream = bench.stream();
  device::Kernels& kernels = bench.kernels();
  const Matrix x = bench.matrix(s.tokens, s.hidden);
  const Matrix y = bench.matrix(s.tokens, s.hidden);
  const Matrix z = bench.matrix(s.tokens, s.hidden);
  const Matrix weight = bench.matrix(1, s.hidden);
  const double n = static_cast<double>(s.tokens * s.hidden);
  float* const inv_rms = bench.floats(s.tokens);
  float* const angles = bench.floats(s.tokens * s.head_dim);
  const Bytes size = kernels.rms_norm_backward_scratch(s.tokens, s.hidden);
  const device::Workspace scratch{bench.take(size), size};
  measure_kernel(bench, copy_rate, "rms_norm forward", 2 * n,
                 [&] { kernels.rms_norm_forward(stream, x, weight.data, 1e-5F, y, inv_rms); });
  measure_kernel(bench, copy_rate, "rms_norm backward", 3 * n, [&] {
    kernels.rms_norm_backward(stream, y, x, weight.data, inv_rms, z, false, weight.data, scratch);
  });
  measure_kernel(bench, copy_rate, "rope", 2 * n, [&] {
    kernels.rope(stream, x, s.hidden / s.head_dim, s.head_dim, s.tokens, nullptr, angles, false);
  });
  measure_kernel(bench, copy_rate, "bias gradient", n,
                 [&] { kernels.bias_gradient(stream, x, weight.data); });
  bench.release();
}

void measure_loss(Bench& bench, double copy_rate) {
  const Sizes& s = bench.sizes();
  device::Stream& stream = bench.stream();
  device::Kernels& kernels = bench.kernels();
  const Matrix logits = bench.matrix(s.tokens, s.vocab_tile, DType::f32);
  const Matrix dlogits = bench.matrix(s.tokens, s.vocab_tile);
  const device::CrossEntropyState state{bench.floats(s.tokens), bench.floats(s.tokens),
                                        bench.floats(s.tokens)};
  auto* const labels = reinterpret_cast<int32_t*>(bench.floats(s.tokens));
  stream.fill_zero_async(labels, Bytes(s.tokens * 4));
  kernels.cross_entropy_start(stream, state, s.tokens);
  const double n = static_cast<double>(s.tokens * s.vocab_tile);
  measure_kernel(bench, copy_rate, "cross-entropy tile", 2 * n,
                 [&] { kernels.cross_entropy_tile(stream, logits, 0, labels, state); });
  measure_kernel(bench, copy_rate, "cross-entropy gradient", 3 * n, [&] {
    kernels.cross_entropy_gradient(stream, logits, 0, labels, state, 1.0F, dlogits);
  });
  bench.release();
}

/// The optimizer where its state lives on the device: a split master and fp32 moments.
void measure_optimizer(Bench& bench, double copy_rate) {
  const Elements count(bench.sizes().tokens * bench.sizes().intermediate);
  device::OptimizerArrays arrays;
  arrays.count = count.count();
  arrays.master_low = reinterpret_cast<uint16_t*>(bench.take(bytes_for(count, DType::u16)));
  arrays.weight = bench.take(bytes_for(count, DType::bf16));
  arrays.moment1 = bench.floats(count.count());
  arrays.moment2 = bench.floats(count.count());
  arrays.gradient = bench.take(bytes_for(count, DType::bf16));
  arrays.gradient_dtype = DType::bf16;
  bench.stream().fill_zero_async(arrays.moment2, bytes_for(count, DType::f32));
  device::OptimizerStep step;
  step.beta1 = 0.9F;
  step.one_minus_beta1 = 0.1F;
  step.beta2 = 0.999F;
  step.one_minus_beta2 = 0.001F;
  step.eps = 1e-8F;
  step.step_size = 1e-6F;
  auto* const flag = reinterpret_cast<int32_t*>(bench.take(Bytes(64)));
  const auto n = static_cast<double>(count.count());
  // Weight, low half and two moments in and out, the gradient in: 13 times 2 bytes.
  measure_kernel(bench, copy_rate, "AdamW, split master", 13 * n,
                 [&] { bench.kernels().optimizer_update(bench.stream(), step, arrays, flag); });
  auto* const sums = reinterpret_cast<double*>(
      bench.take(Bytes(device::statistics_blocks(count) * int64_t{sizeof(double)})));
  measure_kernel(bench, copy_rate, "gradient norm", n, [&] {
    bench.kernels().gradient_statistics(bench.stream(), arrays.gradient, DType::bf16, count, sums);
  });
  bench.release();
}

/// FLOP per second of a [tokens, hidden] by [hidden, intermediate] product.
double measure_product(Bench& bench, DType dtype) {
  const Sizes& s = bench.sizes();
  const Matrix a = bench.matrix(s.tokens, s.hidden, dtype);
  const Matrix b = bench.matrix(s.intermediate, s.hidden, dtype);
  const Matrix c = bench.matrix(s.tokens, s.intermediate, dtype);
  const Bytes size = bench.kernels().matmul_scratch(a, false, b, true, c);
  const device::Workspace scratch{bench.take(size), size};
  const double flop = 2.0 * static_cast<double>(s.tokens) * static_cast<double>(s.hidden) *
                      static_cast<double>(s.intermediate);
  const double rate = flop / bench.seconds_of([&] {
    bench.kernels().matmul(bench.stream(), a, false, b, true, c, false, scratch);
  });
  bench.release();
  return rate;
}

/// A bf16 matrix in e4m3, with numbers in it.
device::ScaledMatrix rounded(Bench& bench, const Matrix& source) {
  const device::ScaledMatrix target{bench.take(Bytes(source.rows * source.columns)),
                                    bench.floats(1), source.rows, source.columns};
  const device::Workspace scratch{bench.take(device::kQuantizeScratch), device::kQuantizeScratch};
  bench.kernels().quantize(bench.stream(), source, target, scratch);
  return target;
}

/// The product of measure_product() in e4m3, and what it takes to round a matrix first.
void measure_fp8(Bench& bench, double copy_rate, double product_rate) {
  const Sizes& s = bench.sizes();
  const Matrix a = bench.matrix(s.tokens, s.hidden);
  const Matrix b = bench.matrix(s.intermediate, s.hidden);
  const Matrix c = bench.matrix(s.tokens, s.intermediate);
  const device::ScaledMatrix a_codes = rounded(bench, a);
  const device::ScaledMatrix b_codes = rounded(bench, b);
  const Bytes size = std::max(bench.kernels().matmul_scaled_scratch(a_codes, b_codes, c),
                              device::kQuantizeScratch);
  const device::Workspace scratch{bench.take(size), size};
  const auto post_rounding = [&] { bench.kernels().quantize(bench.stream(), b, b_codes, scratch); };
  const auto post_product = [&] {
    bench.kernels().matmul_scaled(bench.stream(), a_codes, b_codes, nullptr, c, false, scratch);
  };
  // Read twice, written in half the bytes.
  measure_kernel(bench, copy_rate, "round bf16 to fp8",
                 2.5 * static_cast<double>(s.intermediate * s.hidden), post_rounding);
  const double flop = 2.0 * static_cast<double>(s.tokens) * static_cast<double>(s.hidden) *
                      static_cast<double>(s.intermediate);
  print_row("matrix product, fp8", flop / bench.seconds_of(post_product) / 1e12, "TFLOP/s",
            product_rate / 1e12, "bf16");
  const double both = bench.seconds_of([&] {
    post_rounding();
    post_product();
  });
  print_row("matrix product, fp8, with the rounding of its weight", flop / both / 1e12, "TFLOP/s",
            product_rate / 1e12, "bf16");
  bench.release();
}

/// `who`: computes it on the device of the bench.
void measure_attention(Bench& bench, double product_rate, int64_t head_dim,
                       const std::string& who) {
  const Sizes& s = bench.sizes();
  device::AttentionShape shape{1, s.tokens, s.heads, s.kv_heads, head_dim};
  shape.scale = 1 / std::sqrt(static_cast<float>(head_dim));
  shape.q_stride = shape.out_stride = s.heads * head_dim;
  shape.k_stride = shape.v_stride = s.kv_heads * head_dim;
  const auto q_like = [&] { return bench.matrix(s.tokens, shape.q_stride).data; };
  const auto k_like = [&] { return bench.matrix(s.tokens, shape.k_stride).data; };
  void* const q = q_like();
  void* const out = q_like();
  void* const dq = q_like();
  void* const k = k_like();
  void* const v = k_like();
  void* const dk = k_like();
  void* const dv = k_like();
  float* const log_sum_exp = bench.floats(s.heads * s.tokens);
  const Bytes size = bench.kernels().attention_scratch(shape, DType::bf16);
  const device::Workspace scratch{bench.take(size), size};
  // Two products over the causal half; five in the backward pass.
  const double flop = static_cast<double>(s.tokens) * static_cast<double>(s.tokens) *
                      static_cast<double>(s.heads * head_dim);
  const double forward = bench.seconds_of([&] {
    bench.kernels().attention_forward(bench.stream(), shape, DType::bf16, q, k, v, out, log_sum_exp,
                                      scratch);
  });
  print_row(fmt::format("attention forward{}, bf16, heads of {}", who, head_dim),
            2 * flop / forward / 1e12, "TFLOP/s", product_rate / 1e12, "the product");
  const double backward = bench.seconds_of([&] {
    bench.kernels().attention_backward(bench.stream(), shape, DType::bf16, q, k, v, out, q,
                                       log_sum_exp, dq, dk, dv, scratch);
  });
  print_row(fmt::format("attention backward{}, bf16, heads of {}", who, head_dim),
            5 * flop / backward / 1e12, "TFLOP/s", product_rate / 1e12, "the product");
  bench.release();
}

/// Attention by cuDNN, where it is and agrees; who computes it is said below.
void measure_cudnn(const device::GpuFound& gpu, const Sizes& sizes, double product_rate) {
  device::GpuOptions how;
  how.attention = device::AttentionChoice::cudnn;
  how.attention_workspace = kGiB * 4;
  const auto device = gpu.make_device(how);
  Bench bench(*device, sizes);
  measure_attention(bench, product_rate, sizes.head_dim, " by cuDNN");
  measure_attention(bench, product_rate, sizes.head_dim / 2, " by cuDNN");
  fmt::print("\nRows by cuDNN: {}.\n\n", device->kernels().attention_description());
}

struct BlockTime {
  double seconds = 0;
  double flop = 0;
};

/// Forward and backward pass of a block, two operations as in training.
BlockTime time_block(Bench& bench) {
  const Sizes& s = bench.sizes();
  model::ModelConfig config = model::preset_config("mistral-7b");
  config.vocab_size = 256;
  config.hidden_size = s.hidden;
  config.intermediate_size = s.intermediate;
  config.layers = 1;
  config.heads = s.heads;
  config.kv_heads = s.kv_heads;
  config.head_dim = s.head_dim;
  model::Network network(config, DType::bf16, {1, s.tokens}, bench.device(), 256);
  Elements count;
  for (const model::ModuleSpec& module : model::module_specs(config)) {
    count = std::max(count, module.count);
  }
  const Bytes packed = bytes_for(count, DType::bf16);
  std::byte* const weights = bench.take(packed);
  std::byte* const dweights = bench.take(packed);
  const Matrix in = bench.matrix(s.tokens, s.hidden);
  const Matrix out = bench.matrix(s.tokens, s.hidden);
  const Bytes size =
      std::max(network.block_forward_workspace(), network.block_backward_workspace());
  const device::Workspace scratch{bench.take(size), size};
  const model::SavedValues whole;  // all of the block is computed again
  const double seconds = bench.seconds_of([&] {
    network.block_forward(bench.stream(), weights, in.data, out.data, whole, scratch);
    bench.stream().record();
    network.block_backward(bench.stream(), weights, in.data, out.data, out.data, dweights, whole,
                           scratch);
    bench.stream().record();
  });
  const double flop =
      network.block_forward_flops().total() + network.block_backward_flops(whole.level).total();
  bench.release();
  return {seconds, flop};
}

/// A block of the 8B shape.
void measure_block(Bench& bench, double product_rate) {
  const BlockTime time = time_block(bench);
  print_row(fmt::format("block forward and backward, sequence {}", bench.sizes().tokens),
            time.flop / time.seconds / 1e12, "TFLOP/s", product_rate / 1e12, "the product");
}

/// A block that takes the CPU longer to launch than the GPU to run, launched and as CUDA graphs.
void measure_graphs(const device::GpuFound& gpu, const Sizes& sizes) {
  const auto rate = [&](device::GraphUse use) {
    const auto device = gpu.make_device({.graphs = {.use = use}});
    Bench bench(*device, sizes);
    return 1 / time_block(bench).seconds;
  };
  const double launched = rate(device::GraphUse::off);
  const std::string name = fmt::format("block of {} tokens, hidden {}", sizes.tokens, sizes.hidden);
  print_row(name + ", launched", launched, "per second", launched, "itself");
  print_row(name + ", CUDA graphs", rate(device::GraphUse::on), "per second", launched, "launched");
}

void measure_link(Bench& bench) {
  const Bytes size = bench.sizes().copy;
  const tiers::HostMemory host(size * 2, false);
  const auto registration = bench.device().register_host(host.bytes());
  std::byte* const below = bench.take(size);
  std::byte* const above = bench.take(size);
  const auto other = bench.device().create_stream("up");
  const auto rate = [&](const std::function<void()>& post) {
    return static_cast<double>(size.count()) / bench.seconds_of(post) / 1e9;
  };
  const double down = rate([&] { bench.stream().copy_async(below, host.data(), size); });
  const double up =
      rate([&] { bench.stream().copy_async(host.data() + size.count(), above, size); });
  const double both = 2 * rate([&] {
                        bench.stream().copy_async(below, host.data(), size);
                        other->copy_async(host.data() + size.count(), above, size);
                        bench.stream().wait(other->record());
                      });
  const char* const kind = registration != nullptr ? "registered" : "pageable";
  print_row(fmt::format("host to device, {}", kind), down, "GB/s", down, "itself");
  print_row(fmt::format("device to host, {}", kind), up, "GB/s", down, "host to device");
  print_row("both directions at once", both, "GB/s", down + up, "their sum");
  bench.release();
}

int run(bool on_cpu, bool quick) {
  std::unique_ptr<device::Device> device;
  std::optional<device::GpuFound> gpu;
  if (on_cpu) {
    device = device::make_cpu_device();
  } else {
    device::GpuSearch search = device::find_gpu();
    gpu = std::move(search.gpu);
    if (!gpu) {
      fmt::print(stderr, "gpu_bench: {}\n", search.refusal);
      return 1;
    }
    fmt::print("{}\n\n", gpu->description);
    device = gpu->make_device({});
  }
  const Sizes sizes = quick ? quick_sizes() : Sizes();
  Bench bench(*device, sizes);
  fmt::print("| what | rate | limit |\n|---|---|---|\n");
  const double copy_rate = measure_copy(bench);
  measure_elementwise(bench, copy_rate);
  measure_rows(bench, copy_rate);
  measure_loss(bench, copy_rate);
  measure_optimizer(bench, copy_rate);
  const double bf16 = measure_product(bench, DType::bf16);
  const double fp32 = measure_product(bench, DType::f32);
  print_row("matrix product, bf16", bf16 / 1e12, "TFLOP/s", bf16 / 1e12, "itself");
  print_row("matrix product, fp32", fp32 / 1e12, "TFLOP/s", bf16 / 1e12, "bf16");
  if (!gpu || gpu->has_fp8) {
    measure_fp8(bench, copy_rate, bf16);
  }
  measure_attention(bench, bf16, bench.sizes().head_dim, "");
  measure_attention(bench, bf16, bench.sizes().head_dim / 2, "");
  measure_block(bench, bf16);
  measure_link(bench);
  if (gpu) {
    measure_graphs(*gpu, quick ? quick_sizes() : small_block());
    measure_cudnn(*gpu, sizes, bf16);
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::Command app("What a GPU reaches beside its limits");
  bool on_cpu = false;
  bool quick = false;
  app.add_flag("--cpu", on_cpu, "The CPU device instead of a GPU");
  app.add_flag("--quick", quick, "Small sizes, measured once");
  if (const auto exit_code = app.parse(argc, argv)) {
    return *exit_code;
  }
  try {
    return headrace::run(on_cpu, quick);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return 1;
  }
}
