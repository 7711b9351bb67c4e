#include "engine/optimizer/adamw.h"

#include <cmath>

#include "base/check.h"
#include "base/parallel.h"
#include "engine/optimizer/adamw_coefficients.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optimizer/adamw.cc"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "base/exact_float.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// bf16 bits of x in the low half of each lane: base/dtype.h's to_bf16.
template <class D>
HWY_INLINE auto bf16_bits(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto high = hn::ShiftRight<16>(bits);
  const auto bias = hn::Add(hn::Set(du, 0x7fffU), hn::And(high, hn::Set(du, 1U)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, bias));
  const auto is_nan = hn::RebindMask(du, hn::Ne(x, x));
  static_cast<void>(d);
  return hn::IfThenElse(is_nan, hn::Or(high, hn::Set(du, 0x40U)), rounded);
}

/// binary16 bits of x in the low half of each lane: base/dtype.h's to_f16.
template <class D>
HWY_INLINE auto f16_bits(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, x);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffU));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto above = [&](int32_t limit) HWY_ATTR {
    return hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, limit)));
  };
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  // 0xc8000fff = 0xfff - (112 << 23): the change of exponent bias and half a unit, less one.
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xc8000fffU)), odd));
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto subnormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000U));
  const auto finite = hn::IfThenElse(above(0x387fffff), normal, subnormal);
  const auto or_infinity = hn::IfThenElse(above(0x477fefff), hn::Set(du, 0x7c00U), finite);
  const auto or_nan = hn::IfThenElse(above(0x7f800000), hn::Set(du, 0x7e00U), or_infinity);
  return hn::Or(or_nan, hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U)));
}

struct NoWeight {
  static constexpr bool kStores = false;
};
struct Bf16Weight {
  static constexpr bool kStores = true;
  template <class D>
  static HWY_INLINE auto bits(D d, hn::Vec<D> x) {
    return bf16_bits(d, x);
  }
};
struct F16Weight {
  static constexpr bool kStores = true;
  template <class D>
  static HWY_INLINE auto bits(D d, hn::Vec<D> x) {
    return f16_bits(d, x);
  }
};

/// The arithmetic of one vector. kDecoupled: AdamW.
template <bool kDecoupled, class Weight>
class Update {
 public:
  Update(const AdamWCoefficients& c, const AdamWShard& shard) : c_(c), s_(shard) {}

  /// Updates elements [begin, end): one by one until the weights are aligned, then by vectors.
  HWY_INLINE void run(int64_t begin, int64_t end) const {
    const hn::ScalableTag<float> d;
    const hn::CappedTag<float, 1> one;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = begin;
    while (i < end && !is_aligned(i, lanes)) {
      update<false>(one, i++);
    }
    for (; i + lanes <= end; i += lanes) {
      prefetch(i + kPrefetchElements);
      update<true>(d, i);
    }
    for (; i < end; ++i) {
      update<false>(one, i);
    }
    // The streamed weights must be visible before the caller hands the shard to another thread.
    if constexpr (Weight::kStores) {
      hwy::FlushStream();
    }
  }

 private:
  static constexpr int64_t kPrefetchElements = 64;

  /// Whether a vector of weights from element i is aligned to its size, or need not be.
  HWY_INLINE bool is_aligned(int64_t i, int64_t lanes) const {
    if constexpr (Weight::kStores) {
      const auto address = reinterpret_cast<uintptr_t>(static_cast<uint16_t*>(s_.weight) + i);
      return address % (static_cast<uintptr_t>(lanes) * sizeof(uint16_t)) == 0;
    } else {
      return true;
    }
  }

  HWY_INLINE void prefetch(int64_t i) const {
    // Past the end of an array a prefetch does nothing.
    hwy::Prefetch(s_.gradient + i);
    hwy::Prefetch(s_.master + i);
    hwy::Prefetch(s_.exp_avg + i);
    hwy::Prefetch(s_.exp_avg_sq + i);
  }

  template <bool kStream, class D>
  HWY_INLINE void update(D d, int64_t i) const {
    auto master = hn::LoadU(d, s_.master + i);
    auto gradient = hn::Mul(hn::LoadU(d, s_.gradient + i), hn::Set(d, c_.gradient_scale));
    if constexpr (kDecoupled) {
      master = hn::Mul(master, hn::Set(d, c_.keep));
    } else {
      gradient = hn::Add(gradient, hn::Mul(master, hn::Set(d, c_.weight_decay)));
    }
    const auto m = hn::Add(hn::Mul(hn::LoadU(d, s_.exp_avg + i), hn::Set(d, c_.beta1)),
                           hn::Mul(gradient, hn::Set(d, c_.one_minus_beta1)));
    const auto v = hn::Add(hn::Mul(hn::LoadU(d, s_.exp_avg_sq + i), hn::Set(d, c_.beta2)),
                           hn::Mul(hn::Mul(gradient, hn::Set(d, c_.one_minus_beta2)), gradient));
    const auto root = hn::Mul(hn::Sqrt(v), hn::Set(d, c_.inverse_correction2));
    const auto denominator = hn::Add(root, hn::Set(d, c_.eps));
    const auto change = hn::Div(hn::Mul(m, hn::Set(d, c_.step_size)), denominator);
    master = hn::Sub(master, change);
    hn::StoreU(m, d, s_.exp_avg + i);
    hn::StoreU(v, d, s_.exp_avg_sq + i);
    hn::StoreU(master, d, s_.master + i);
    if constexpr (Weight::kStores) {
      store_weight<kStream>(d, master, i);
    }
  }

  template <bool kStream, class D>
  HWY_INLINE void store_weight(D d, hn::Vec<D> master, int64_t i) const {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> d16;
    const auto narrow = hn::DemoteTo(d16, hn::BitCast(di, Weight::bits(d, master)));
    auto* target = static_cast<uint16_t*>(s_.weight) + i;
    // Highway rounds streams of less than 16 bytes up.
    if constexpr (kStream && hn::MaxLanes(D()) * sizeof(uint16_t) >= 16) {
      hn::Stream(narrow, d16, target);
    } else {
      hn::StoreU(narrow, d16, target);
    }
  }

  const AdamWCoefficients c_;
  const AdamWShard s_;
};

template <bool kDecoupled, class Weight>
HWY_NOINLINE void run_update(const AdamWCoefficients& c, const AdamWShard& shard) {
  const Update<kDecoupled, Weight> update(c, shard);
  parallel_for_blocks(shard.count.count(), kAdamWBlock,
                      [&](int64_t begin, int64_t end) HWY_ATTR { update.run(begin, end); });
}

template <class Weight>
void choose_mode(const AdamWCoefficients& c, const AdamWShard& shard) {
  if (c.decoupled) {
    run_update<true, Weight>(c, shard);
  } else {
    run_update<false, Weight>(c, shard);
  }
}

void adamw_update_here(const AdamWCoefficients& c, const AdamWShard& shard) {
  if (shard.weight == nullptr) {
    choose_mode<NoWeight>(c, shard);
  } else if (shard.weight_dtype == DType::bf16) {
    choose_mode<Bf16Weight>(c, shard);
  } else {
    choose_mode<F16Weight>(c, shard);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::engine {

HWY_EXPORT(adamw_update_here);

void adamw_update(const AdamWOptions& options, const AdamWShard& shard) {
  HR_CHECK(options.step >= 1, "adamw: step {}", options.step);
  HR_CHECK(shard.count.count() >= 0, "adamw: {} elements", shard.count.count());
  if (shard.count.count() == 0) {
    return;
  }
  HR_CHECK(shard.master != nullptr && shard.exp_avg != nullptr && shard.exp_avg_sq != nullptr &&
               shard.gradient != nullptr,
           "adamw: an array of {} elements is missing", shard.count.count());
  HR_CHECK(shard.weight == nullptr || shard.weight_dtype == DType::bf16 ||
               shard.weight_dtype == DType::f16,
           "adamw: weights of dtype {}", to_string(shard.weight_dtype));
  HWY_DYNAMIC_DISPATCH(adamw_update_here)(adamw_coefficients(options), shard);
}

}  // namespace headrace::engine
#endif  // HWY_ONCE
