#include "bench/optimizer_traffic.h"

#include <atomic>

#include "base/check.h"
#include "base/parallel.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/optimizer_traffic.cc"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "hwy/cache_control.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kGroup = 32;
constexpr int64_t kPrefetchBytes = 1024;
constexpr int64_t kBlock = int64_t{1} << 16;

template <int kReadWrite4, int kReadWrite2, int kReadWrite1, bool kRead4, bool kRead2, bool kWrite2>
class Traffic {
 public:
  Traffic(const TrafficArrays& arrays, uint32_t zero) : a_(arrays), zero_(zero) {}

  /// Elements [begin, end), whole groups only. Returns a value that depends on what was read.
  HWY_INLINE uint32_t run(int64_t begin, int64_t end) const {
    // Whole vectors of every type: halves of vectors made 16-bit arrays a tenth slower.
    const hn::ScalableTag<uint32_t> d4;
    const hn::ScalableTag<uint16_t> d2;
    const hn::CappedTag<uint8_t, kGroup> d1;
    auto seen4 = hn::Zero(d4);
    auto seen2 = hn::Zero(d2);
    for (int64_t i = begin; i + kGroup <= end; i += kGroup) {
      prefetch(i);
      for (int64_t j = i; j < i + kGroup; j += static_cast<int64_t>(hn::Lanes(d4))) {
        seen4 = hn::Or(seen4, move4(d4, j));
      }
      for (int64_t j = i; j < i + kGroup; j += static_cast<int64_t>(hn::Lanes(d2))) {
        seen2 = hn::Or(seen2, move2(d2, j));
      }
      for (int64_t j = i; j < i + kGroup; j += static_cast<int64_t>(hn::Lanes(d1))) {
        move1(d1, j);
      }
    }
    if constexpr (kWrite2) {
      hwy::FlushStream();
    }
    return hn::GetLane(hn::MaxOfLanes(d4, seen4)) | hn::GetLane(hn::MaxOfLanes(d2, seen2));
  }

 private:
  HWY_INLINE void prefetch(int64_t i) const {
    const auto four = [i](const float* array) HWY_ATTR {
      hwy::Prefetch(array + i + kPrefetchBytes / 4);
      hwy::Prefetch(array + i + kPrefetchBytes / 4 + kGroup / 2);
    };
    const auto two = [i](const uint16_t* array)
                         HWY_ATTR { hwy::Prefetch(array + i + kPrefetchBytes / 2); };
    for (int k = 0; k < kReadWrite4; ++k) {
      four(a_.read_write4[k]);
    }
    for (int k = 0; k < kReadWrite2; ++k) {
      two(a_.read_write2[k]);
    }
    for (int k = 0; k < kReadWrite1; ++k) {
      hwy::Prefetch(a_.read_write1[k] + i + kPrefetchBytes);
    }
    if constexpr (kRead4) {
      four(a_.read4);
    }
    if constexpr (kRead2) {
      two(a_.read2);
    }
  }

  // One vector of the arrays of each type. `zero_` is not known to the compiler, so the stores
  // stay.
  template <class D>
  HWY_INLINE hn::Vec<D> move4(D d, int64_t i) const {
    const auto zero = hn::Set(d, zero_);
    auto seen = hn::Zero(d);
    if constexpr (kRead4) {
      seen = hn::LoadU(d, reinterpret_cast<const uint32_t*>(a_.read4) + i);
    }
    for (int k = 0; k < kReadWrite4; ++k) {
      auto* const at = reinterpret_cast<uint32_t*>(a_.read_write4[k]) + i;
      hn::StoreU(hn::Xor(hn::LoadU(d, at), zero), d, at);
    }
    return seen;
  }
  template <class D>
  HWY_INLINE hn::Vec<D> move2(D d, int64_t i) const {
    const auto zero = hn::Set(d, static_cast<uint16_t>(zero_));
    auto seen = hn::Zero(d);
    if constexpr (kRead2) {
      seen = hn::LoadU(d, a_.read2 + i);
    }
    for (int k = 0; k < kReadWrite2; ++k) {
      auto* const at = a_.read_write2[k] + i;
      hn::StoreU(hn::Xor(hn::LoadU(d, at), zero), d, at);
    }
    if constexpr (kWrite2 && hn::MaxLanes(D()) * sizeof(uint16_t) >= 16) {
      hn::Stream(zero, d, a_.write2 + i);
    } else if constexpr (kWrite2) {
      hn::StoreU(zero, d, a_.write2 + i);
    }
    return seen;
  }
  template <class D>
  HWY_INLINE void move1(D d, int64_t i) const {
    const auto zero = hn::Set(d, static_cast<uint8_t>(zero_));
    for (int k = 0; k < kReadWrite1; ++k) {
      auto* const at = a_.read_write1[k] + i;
      hn::StoreU(hn::Xor(hn::LoadU(d, at), zero), d, at);
    }
  }

  const TrafficArrays a_;
  const uint32_t zero_;
};

/// Whether the arrays are those of the template arguments; then it has moved them.
template <int kReadWrite4, int kReadWrite2, int kReadWrite1, bool kRead4, bool kRead2, bool kWrite2>
HWY_NOINLINE bool moves(const TrafficArrays& a) {
  const bool fits = (kReadWrite4 == 0 || a.read_write4[kReadWrite4 - 1] != nullptr) &&
                    (kReadWrite4 == 3 || a.read_write4[kReadWrite4] == nullptr) &&
                    (kReadWrite2 == 0 || a.read_write2[kReadWrite2 - 1] != nullptr) &&
                    (kReadWrite2 == 4 || a.read_write2[kReadWrite2] == nullptr) &&
                    (kReadWrite1 == 0 || a.read_write1[kReadWrite1 - 1] != nullptr) &&
                    (kReadWrite1 == 2 || a.read_write1[kReadWrite1] == nullptr) &&
                    kRead4 == (a.read4 != nullptr) && kRead2 == (a.read2 != nullptr) &&
                    kWrite2 == (a.write2 != nullptr);
  if (!fits) {
    return false;
  }
  static volatile uint32_t zero = 0;
  std::atomic<uint32_t> sink = 0;
  const Traffic<kReadWrite4, kReadWrite2, kReadWrite1, kRead4, kRead2, kWrite2> traffic(a, zero);
  parallel_for_blocks(a.count, kBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    sink.fetch_or(traffic.run(begin, end), std::memory_order_relaxed);
  });
  return true;
}

bool move_traffic_here(const TrafficArrays& a) {
  return moves<3, 0, 0, true, false, true>(a) || moves<3, 0, 0, false, true, true>(a) ||
         moves<3, 0, 0, true, false, false>(a) || moves<2, 0, 0, true, false, true>(a) ||
         moves<2, 2, 0, false, true, false>(a) || moves<1, 2, 0, false, true, false>(a) ||
         moves<0, 4, 0, false, true, false>(a) || moves<0, 3, 0, false, true, false>(a) ||
         moves<0, 2, 0, false, true, false>(a) || moves<0, 2, 2, false, true, false>(a) ||
         moves<1, 0, 2, false, true, true>(a) || moves<0, 2, 1, false, true, false>(a);
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::bench {

HWY_EXPORT(move_traffic_here);

void move_traffic(const TrafficArrays& arrays) {
  HR_CHECK(HWY_DYNAMIC_DISPATCH(move_traffic_here)(arrays), "no traffic kernel for these arrays");
}

}  // namespace headrace::bench
#endif  // HWY_ONCE
