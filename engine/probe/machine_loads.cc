#include "engine/probe/machine_loads.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/median.h"
#include "base/parallel.h"
#include "base/seconds.h"
#include "device/device.h"
#include "device/kernels.h"
#include "engine/optimizer/update.h"
#include "engine/probe/memory_traffic.h"

namespace headrace::engine {

namespace {

constexpr int64_t kBlock = int64_t{1} << 16;  ///< elements that one thread passes over at a time
constexpr size_t kCallsMin = 3;
/// Bytes between two arrays: equal addresses modulo 4096 would slow each other down.
constexpr int64_t kPad = int64_t{17} * 64;
constexpr int64_t kPadElements = 512;  ///< room for the bytes between all arrays

/// The arrays of one load, one after the other in memory, each aligned to 64 bytes.
class Arrays {
 public:
  explicit Arrays(aio::HugeMemory& memory)
      : at_(memory.data()),
        end_(memory.data() + memory.size().count()),
        count_((memory.size().count() / kElementBytes - kPadElements) / kBlock * kBlock) {
    if (count_ < kBlock) {
      throw CapacityError("the machine probe needs at least " +
                          format_bytes(Bytes((kBlock + kPadElements) * kElementBytes)) +
                          " of memory");
    }
  }
  int64_t count() const { return count_; }

  template <class T>
  T* take(T value) {
    T* const array = reinterpret_cast<T*>(at_);  // multiples of 64 bytes from a page border
    at_ += align_up(count_ * static_cast<int64_t>(sizeof(T)), 64) + kPad;
    if (at_ > end_) {
      throw InternalError("internal error: the arrays of a load exceed its memory");
    }
    parallel_for_blocks(count_, kBlock, [&](int64_t begin, int64_t end) {
      std::fill(array + begin, array + end, value);
    });
    return array;
  }

 private:
  std::byte* at_;
  std::byte* end_;
  int64_t count_;
};

/// Restores the number of threads.
class Threads {
 public:
  explicit Threads(int threads) : before_(parallel_threads()) { set_parallel_threads(threads); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_parallel_threads(before_); }

 private:
  int before_;
};

/// A product with the shape of a block's linear layer: tokens by weights.
double matmul_rate(device::Device& cpu, device::Stream& stream, DType dtype, const LoadTime& time) {
  constexpr int64_t kTokens = 512;
  constexpr int64_t kHidden = 2048;
  const Bytes element = size_of(dtype);
  const auto activations = cpu.allocate(element * (kTokens * kHidden));
  const auto weights = cpu.allocate(element * (kHidden * kHidden));
  const auto product = cpu.allocate(element * (kTokens * kHidden));
  stream.fill_zero_async(activations->data(), activations->size());
  stream.fill_zero_async(weights->data(), weights->size());
  const device::Matrix a{activations->data(), dtype, kTokens, kHidden, kHidden};
  const device::Matrix b{weights->data(), dtype, kHidden, kHidden, kHidden};
  const device::Matrix c{product->data(), dtype, kTokens, kHidden, kHidden};
  device::Kernels& kernels = cpu.kernels();
  const Bytes scratch_size = std::max(Bytes(64), kernels.matmul_scratch(a, false, b, true, c));
  const auto scratch = cpu.allocate(scratch_size);
  const double seconds = median_seconds(time, [&] {
    kernels.matmul(stream, a, false, b, true, c, false, {scratch->data(), scratch_size});
    stream.synchronize();
  });
  return 2.0 * kTokens * kHidden * kHidden / seconds;
}

}  // namespace

double median_seconds(const LoadTime& time, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  const auto begin = Clock::now();
  auto last = begin;
  bool is_first = true;
  while (seconds.size() < kCallsMin || seconds_between(begin, last) < time.seconds) {
    if (time.cancelled != nullptr && time.cancelled->load()) {
      throw InterruptedError("the probe was stopped");
    }
    const auto from = Clock::now();
    work();
    last = Clock::now();
    if (!is_first) {
      seconds.push_back(seconds_between(from, last));
    }
    is_first = false;
  }
  return median(std::move(seconds));
}

double memory_rate(aio::HugeMemory& memory, int threads, const LoadTime& time) {
  Arrays arrays(memory);
  auto* const master = arrays.take(1.0F);
  auto* const moment1 = arrays.take(1.0F);
  auto* const moment2 = arrays.take(1.0F);
  auto* const gradient = arrays.take(1e-9F);
  const Threads used(threads);
  const double seconds = median_seconds(time, [&] {
    parallel_for_blocks(arrays.count(), kBlock, [&](int64_t begin, int64_t end) {
      pass_over(master + begin, moment1 + begin, moment2 + begin, gradient + begin, end - begin);
    });
  });
  return static_cast<double>(arrays.count()) * kTrafficBytes / seconds;
}

int traffic_bytes(StateKind kind) {
  switch (kind) {
    case StateKind::fp32:
      return 16 + 12;
    case StateKind::split:
      return 14 + 12;
    case StateKind::split_bf16_moments:
      return 10 + 8;
    case StateKind::split_8bit_moments:
      return 8 + 6;  // and a 32nd for the scales
  }
  return 0;
}

double optimizer_rate(aio::HugeMemory& memory, StateKind kind, const LoadTime& time) {
  constexpr uint16_t kOne = 0x3f80;       // 1.0 in bf16
  constexpr uint16_t kGradient = 0x3a83;  // about 0.001
  Arrays arrays(memory);
  UpdateShard shard;
  shard.count = Elements(arrays.count());
  if (kind == StateKind::fp32) {
    shard.master = arrays.take(1.0F);
    shard.gradient = arrays.take(1e-3F);
  } else {
    shard.weight = arrays.take(kOne);
    shard.master_low = arrays.take(uint16_t{0});
    shard.gradient = arrays.take(kGradient);
    shard.gradient_dtype = DType::bf16;
  }
  if (kind == StateKind::split_bf16_moments) {
    shard.moment1 = arrays.take(uint16_t{0});
    shard.moment2 = arrays.take(uint16_t{0});
    shard.moment_dtype = DType::bf16;
  } else if (kind == StateKind::split_8bit_moments) {
    shard.moment1 = arrays.take(uint8_t{0});
    shard.moment2 = arrays.take(uint8_t{0});
    shard.scale1 = arrays.take(uint8_t{0});
    shard.scale2 = arrays.take(uint8_t{0});
    shard.moment_dtype = DType::u8;
  } else {
    shard.moment1 = arrays.take(0.0F);
    shard.moment2 = arrays.take(0.0F);
  }
  UpdateOptions options;
  options.lr = 1e-6;
  options.step = 0;
  bool is_finite = true;
  const double seconds = median_seconds(time, [&] {
    ++options.step;
    is_finite = update(options, shard).all_finite && is_finite;
  });
  if (!is_finite) {
    throw InternalError("internal error: the optimizer's update gave values that are not finite");
  }
  return static_cast<double>(arrays.count()) / seconds;
}

DeviceRates device_rates(const LoadTime& time) {
  constexpr Bytes kCopy{64 << 20};
  const LoadTime each{.seconds = time.seconds / 4, .cancelled = time.cancelled};
  const auto cpu = device::make_cpu_device();
  const auto stream = cpu->create_stream("hr-probe");
  DeviceRates rates;
  rates.matmul_f32 = matmul_rate(*cpu, *stream, DType::f32, each);
  rates.matmul_bf16 = matmul_rate(*cpu, *stream, DType::bf16, each);
  aio::HugeMemory host(kCopy);
  host.fill_random();
  const auto on_device = cpu->allocate(kCopy);
  const auto copy_rate = [&](void* target, const void* source) {
    const double seconds = median_seconds(each, [&] {
      stream->copy_async(target, source, kCopy);
      stream->synchronize();
    });
    return static_cast<double>(kCopy.count()) / seconds;
  };
  rates.to_device = copy_rate(on_device->data(), host.data());
  rates.to_host = copy_rate(host.data(), on_device->data());
  return rates;
}

}  // namespace headrace::engine
