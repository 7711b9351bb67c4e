#include "tests/fake_cuda/fake_flash.h"

#include "base/check.h"
#include "device/cuda/kernels/flash_dispatch.inl.h"
#include "tests/fake_cuda/argument_bytes.h"
#include "tests/fake_cuda/lockstep_block.h"
// Last: nothing is fused from here on, as nvcc is told too.
#include "base/exact_float.h"

namespace headrace::device::testing {

namespace {

using cuda::AttentionArguments;

/// The operands as the interface defines them: nothing else may be touched.
GlobalMemory memory_of(const AttentionArguments& a, cuda::KernelId kernel) {
  const bool is_forward = kernel == cuda::KernelId::flash_forward;
  const bool is_statistics = is_forward || kernel == cuda::KernelId::flash_delta;
  std::vector<GlobalMatrix> matrices;
  const auto add = [&](const void* data, int64_t stride, int64_t heads, bool is_writable) {
    if (data != nullptr) {
      matrices.push_back({data, a.batch * a.seq, stride * 2, heads * a.head_dim * 2, is_writable});
    }
  };
  add(a.q, a.q_stride, a.q_heads, false);
  add(a.k, a.k_stride, a.kv_heads, false);
  add(a.v, a.v_stride, a.kv_heads, false);
  add(a.out, a.out_stride, a.q_heads, is_forward);
  add(a.dout, a.out_stride, a.q_heads, false);
  add(a.dq, a.q_stride, a.q_heads, true);
  add(a.dk, a.k_stride, a.kv_heads, true);
  add(a.dv, a.v_stride, a.kv_heads, true);
  const int64_t rows = a.batch * a.q_heads * a.seq;
  for (float* const statistic : {a.log_sum_exp, a.delta}) {
    if (statistic != nullptr) {
      matrices.push_back({statistic, rows, 4, 4, is_statistics});
    }
  }
  for (const int32_t* const borders : {a.begins, a.ends}) {
    if (borders != nullptr) {
      matrices.push_back({borders, a.batch * a.seq, 4, 4, false});
    }
  }
  return GlobalMemory(std::move(matrices));
}

struct RunFlash {
  const cuda::Launch& launch;
  const void* arguments;
  FlashCounts& counts;

  template <class Kernel>
  bool operator()() const {
    const auto& typed = *static_cast<const typename Kernel::Arguments*>(arguments);
    HR_CHECK(launch.threads == Kernel::kThreads && launch.shared_bytes == Kernel::kSharedBytes &&
                 launch.grid_y == 1,
             "a kernel of {} threads and {} bytes is launched with {} and {}", Kernel::kThreads,
             Kernel::kSharedBytes, launch.threads, launch.shared_bytes);
    const GlobalMemory global = memory_of(typed, launch.kernel);
    for (uint32_t x = 0; x < launch.grid_x; ++x) {
      SharedMemory shared(launch.shared_bytes);
      const LockstepBlock<Kernel::kThreads> block(static_cast<int>(x), shared, global);
      Kernel::run(block, typed);
      block.finish();
      counts.products += block.counts().products;
      counts.loads += block.counts().loads;
      counts.passes += shared.passes();
      counts.conflicts += shared.conflicts();
    }
    return true;
  }
};

template <class Run>
bool dispatch(const cuda::Launch& launch, const Run& run) {
  return cuda::dispatch_flash_forward(launch, run) || cuda::dispatch_flash_keys(launch, run) ||
         cuda::dispatch_flash_queries(launch, run);
}

}  // namespace

bool run_flash_kernel(const cuda::Launch& launch, const void* arguments, FlashCounts* counts) {
  FlashCounts ignored;
  return dispatch(launch, RunFlash{launch, arguments, counts == nullptr ? ignored : *counts});
}

size_t flash_argument_bytes(const cuda::Launch& launch) {
  size_t size = 0;
  dispatch(launch, ArgumentBytes{size});
  return size;
}

}  // namespace headrace::device::testing
