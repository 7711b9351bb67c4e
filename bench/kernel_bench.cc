// Matrix products and attention of the CPU device. FLOP/s count useful work only: 2 m n k for a
// product, the causal half for attention. The first argument is the number of threads. "CPU" is the
// time of the whole process: on a busy machine compare that, of the runs with one thread.
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "device/cpu/matmul.h"
#include "device/device.h"
#include "device/kernels.h"

namespace headrace::device {
namespace {

/// Device memory of `count` values in [-1, 1).
std::unique_ptr<Memory> random_values(Device& device, DType dtype, int64_t count) {
  auto memory = device.allocate(bytes_for(Elements(count), dtype));
  Random random(1, 0);
  for (int64_t i = 0; i < count; ++i) {
    const float value = 2 * uniform_from(random.next_u32()) - 1;
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(memory->data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(memory->data())[i] =
          dtype == DType::bf16 ? to_bf16(value).bits : to_f16(value).bits;
    }
  }
  return memory;
}

void report(benchmark::State& state, double flop_per_iteration, Bytes scratch) {
  state.counters["FLOP/s"] =
      benchmark::Counter(flop_per_iteration, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["scratch_MiB"] = static_cast<double>(scratch.count()) / 0x1p20;
}

/// A product c = a * b^T of the given sizes, as the forward pass of a linear layer has it.
struct Product {
  Product(Device& device, DType dtype, int64_t m, int64_t n, int64_t k)
      : a_memory(random_values(device, dtype, m * k)),
        b_memory(random_values(device, dtype, n * k)),
        c_memory(random_values(device, dtype, m * n)),
        a{a_memory->data(), dtype, m, k, k},
        b{b_memory->data(), dtype, n, k, k},
        c{c_memory->data(), dtype, m, n, n},
        flop(2.0 * static_cast<double>(m * n * k)) {}

  std::unique_ptr<Memory> a_memory, b_memory, c_memory;
  Matrix a, b, c;
  double flop;
};

void bench_matmul(benchmark::State& state, DType dtype) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream("compute");
  const auto threads = static_cast<int>(state.range(0));
  stream->run_on_host([threads] { set_parallel_threads(threads); });
  const Product p(*device, dtype, state.range(1), state.range(2), state.range(3));
  const Bytes size = device->kernels().matmul_scratch(p.a, false, p.b, true, p.c);
  const auto scratch = device->allocate(size);
  for ([[maybe_unused]] auto _ : state) {
    device->kernels().matmul(*stream, p.a, false, p.b, true, p.c, false, {scratch->data(), size});
    stream->synchronize();
  }
  report(state, p.flop, size);
}

/// The two ways to multiply bf16 matrices, on one thread: which one prefers_bf16_instructions()
/// should choose on this machine.
void bench_bf16_way(benchmark::State& state, bool bf16_instructions) {
  if (bf16_instructions && !cpu::has_bf16_instructions()) {
    state.SkipWithError("this CPU has no bf16 instructions");
    return;
  }
  const auto device = make_cpu_device();
  cpu::TileProductCache products;
  const cpu::CpuMatmul matmul(products, bf16_instructions);
  set_parallel_threads(1);
  const Product p(*device, DType::bf16, 512, 576, 1536);
  const Bytes size = matmul.scratch(p.a, false, p.b, true, p.c);
  const auto scratch = device->allocate(size);
  for ([[maybe_unused]] auto _ : state) {
    matmul.run(p.a, false, p.b, true, p.c, false, {scratch->data(), size});
  }
  report(state, p.flop, size);
}

/// Arguments: threads, batch, seq, query heads, key/value heads, head_dim, documents that share
/// each sequence.
void bench_attention(benchmark::State& state, bool backward) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream("compute");
  const auto threads = static_cast<int>(state.range(0));
  stream->run_on_host([threads] { set_parallel_threads(threads); });
  AttentionShape shape{state.range(1), state.range(2), state.range(3), state.range(4),
                       state.range(5)};
  shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  shape.q_stride = shape.out_stride = shape.q_heads * shape.head_dim;
  shape.k_stride = shape.v_stride = shape.kv_heads * shape.head_dim;
  const int64_t rows = shape.batch * shape.seq;
  const int64_t length = shape.seq / state.range(6);
  std::vector<int32_t> begins(static_cast<size_t>(rows));
  std::vector<int32_t> ends(begins.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = row % shape.seq / length * length;
    begins[static_cast<size_t>(row)] = static_cast<int32_t>(begin);
    ends[static_cast<size_t>(row)] = static_cast<int32_t>(begin + length);
  }
  if (state.range(6) > 1) {
    shape.visible = {begins.data(), ends.data()};
  }
  std::vector<std::unique_ptr<Memory>> memory;
  const auto operand = [&](int64_t count, DType dtype = DType::bf16) {
    memory.push_back(random_values(*device, dtype, count));
    return memory.back()->data();
  };
  void* const q = operand(rows * shape.q_stride);
  void* const k = operand(rows * shape.k_stride);
  void* const v = operand(rows * shape.v_stride);
  void* const out = operand(rows * shape.q_stride);
  void* const dout = operand(rows * shape.q_stride);
  void* const dq = operand(rows * shape.q_stride);
  void* const dk = operand(rows * shape.k_stride);
  void* const dv = operand(rows * shape.v_stride);
  auto* const statistics = reinterpret_cast<float*>(operand(rows * shape.q_heads, DType::f32));
  Kernels& kernels = device->kernels();
  const Bytes size = kernels.attention_scratch(shape, DType::bf16);
  const auto memory_of_scratch = device->allocate(size);
  const Workspace scratch{memory_of_scratch->data(), size};
  kernels.attention_forward(*stream, shape, DType::bf16, q, k, v, out, statistics, scratch);
  stream->synchronize();
  for ([[maybe_unused]] auto _ : state) {
    if (backward) {
      kernels.attention_backward(*stream, shape, DType::bf16, q, k, v, out, dout, statistics, dq,
                                 dk, dv, scratch);
    } else {
      kernels.attention_forward(*stream, shape, DType::bf16, q, k, v, out, statistics, scratch);
    }
    stream->synchronize();
  }
  // Two products of the causal half of each document forward, five backward.
  const double product = static_cast<double>(shape.batch * shape.q_heads * shape.head_dim) *
                         static_cast<double>(shape.seq * length);
  report(state, product * (backward ? 5 : 2), size);
}

void matmul_shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t threads : {1, 2}) {
    bench->Args({threads, 512, 576, 1536})
        ->Args({threads, 2048, 576, 576})
        ->Args({threads, 576, 1536, 2048});
  }
  bench->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void attention_shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t threads : {1, 2}) {
    bench->Args({threads, 1, 1024, 9, 3, 64, 1})
        ->Args({threads, 2, 2048, 8, 8, 128, 1})
        ->Args({threads, 1, 4096, 8, 2, 64, 1})
        ->Args({threads, 1, 4096, 8, 2, 64, 16});
  }
  bench->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(bench_matmul, f32, DType::f32)->Apply(matmul_shapes);
BENCHMARK_CAPTURE(bench_matmul, bf16, DType::bf16)->Apply(matmul_shapes);
BENCHMARK_CAPTURE(bench_matmul, f16, DType::f16)->Apply(matmul_shapes);
BENCHMARK_CAPTURE(bench_bf16_way, fp32_instructions, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(bench_bf16_way, bf16_instructions, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(bench_attention, forward, false)->Apply(attention_shapes);
BENCHMARK_CAPTURE(bench_attention, backward, true)->Apply(attention_shapes);

}  // namespace
}  // namespace headrace::device

BENCHMARK_MAIN();
