#include "device/cpu/tile_product.h"

#include <omp.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/check.h"

namespace headrace::device::cpu {

namespace {

// More than a training run uses: some ten shapes per kind of matrix product.
constexpr size_t kProductsMax = 1024;

/// While it lives, oneDNN neither plans for nor opens more threads than the calling one. (Inside a
/// parallel region that is so anyway, but a region of one thread does not count as one.)
class OneDnnOnOneThread {
 public:
  OneDnnOnOneThread() : threads_before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  OneDnnOnOneThread(const OneDnnOnOneThread&) = delete;
  OneDnnOnOneThread& operator=(const OneDnnOnOneThread&) = delete;
  ~OneDnnOnOneThread() { omp_set_num_threads(threads_before_); }

 private:
  int threads_before_;
};

dnnl::memory::desc dense(int64_t rows, int64_t columns, dnnl::memory::data_type type,
                         bool transposed) {
  using Tag = dnnl::memory::format_tag;
  return {{rows, columns}, type, transposed ? Tag::ba : Tag::ab};
}

dnnl::memory::data_type type_of(DType dtype) {
  HR_CHECK(dtype == DType::f32 || dtype == DType::bf16, "tile product in {}", to_string(dtype));
  return dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

InternalError refused(const TileShape& shape, const dnnl::error& error) {
  return InternalError(
      fmt::format("internal error: oneDNN failed in a {} product of {} x {} x {} (status {}: {})",
                  to_string(shape.dtype), shape.rows, shape.columns, shape.depth,
                  static_cast<int>(error.status), error.what()));
}

}  // namespace

TileProduct::TileProduct(const dnnl::engine& engine, const TileShape& shape)
    : engine_(engine),
      a_(dense(shape.rows, shape.depth, type_of(shape.dtype), shape.transpose_a)),
      b_(dense(shape.depth, shape.columns, type_of(shape.dtype), shape.transpose_b)),
      c_(dense(shape.rows, shape.columns, dnnl::memory::data_type::f32, false)) {
  const OneDnnOnOneThread one_thread;
  try {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
    if (shape.accumulate) {
      dnnl::post_ops add_to_c;
      add_to_c.append_sum(1.0F);
      attributes.set_post_ops(add_to_c);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a_, b_, c_), attributes,
                                                   engine_);
    scratchpad_ = description.scratchpad_desc();
    primitive_ = dnnl::matmul(description);
  } catch (const dnnl::error& error) {
    throw refused(shape, error);
  }
}

void TileProduct::run(const void* a, const void* b, float* c, std::byte* scratchpad) const {
  const OneDnnOnOneThread one_thread;
  // oneDNN's interface has no const pointers; a and b are only read.
  const dnnl::memory a_memory(a_, engine_, const_cast<void*>(a));
  const dnnl::memory b_memory(b_, engine_, const_cast<void*>(b));
  const dnnl::memory c_memory(c_, engine_, c);
  const dnnl::memory scratchpad_memory(scratchpad_, engine_, scratchpad);
  dnnl::stream stream(engine_);
  primitive_.execute(stream, {{DNNL_ARG_SRC, a_memory},
                              {DNNL_ARG_WEIGHTS, b_memory},
                              {DNNL_ARG_DST, c_memory},
                              {DNNL_ARG_SCRATCHPAD, scratchpad_memory}});
  stream.wait();
}

Bytes TileProduct::scratchpad_size() const {
  return Bytes(static_cast<int64_t>(scratchpad_.get_size()));
}

TileProductCache::TileProductCache() : engine_(dnnl::engine::kind::cpu, 0) {}

std::shared_ptr<const TileProduct> TileProductCache::get(const TileShape& shape) {
  const std::lock_guard lock(mutex_);
  const auto found = products_.find(shape);
  if (found != products_.end()) {
    return found->second;
  }
  auto made = std::make_shared<const TileProduct>(engine_, shape);
  if (oldest_first_.size() == kProductsMax) {
    products_.erase(oldest_first_.front());
    oldest_first_.pop_front();
  }
  products_.emplace(shape, made);
  oldest_first_.push_back(shape);
  return made;
}

bool has_bf16_instructions() {
  const auto have = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto need = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (have & need) == need;
}

bool prefers_bf16_instructions() {
  if (!has_bf16_instructions()) {
    return false;
  }
#if defined(__x86_64__)
  const auto have = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto amx = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx);
  if ((have & amx) == amx) {
    return true;
  }
  // The Intel cores with AMX (and AVX512-FP16) run the older VDPBF16PS at half the rate of fp32
  // multiply-adds: where a virtual machine hides their AMX, widening is 1.7 times as fast
  // (bench/kernel_bench, bench_bf16_way).
  constexpr unsigned kAvx512Fp16 = 1U << 23;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kAvx512Fp16) == 0;
#else
  return true;
#endif
}

}  // namespace headrace::device::cpu
