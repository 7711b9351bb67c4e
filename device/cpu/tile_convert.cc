#include "device/cpu/tile_convert.h"

#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "device/kernels/e4m3.inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/tile_convert.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Float = hn::ScalableTag<float>;
using HalfWords = hn::Rebind<uint16_t, Float>;
using Words = hn::Rebind<uint32_t, Float>;

// Where the instruction set has no conversion, binary16 goes through base/dtype.h.
constexpr bool kHasF16 = (HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86) || HWY_ARCH_ARM_A64;

using headrace::to_float;
using kernels::E4m3;
inline float to_float(float value) {
  return value;
}
inline float to_float(E4m3 value) {
  return kernels::to_f32(value);
}
inline void round_to(float value, float* target) {
  *target = value;
}
inline void round_to(float value, Bf16* target) {
  *target = to_bf16(value);
}
inline void round_to(float value, F16* target) {
  *target = to_f16(value);
}

HWY_INLINE hn::Vec<Float> load_vector(const float* source) {
  return hn::LoadU(Float(), source);
}
HWY_INLINE hn::Vec<Float> load_vector(const Bf16* source) {
  const auto halves = hn::LoadU(HalfWords(), reinterpret_cast<const uint16_t*>(source));
  return hn::BitCast(Float(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), halves)));
}
HWY_INLINE hn::Vec<Float> load_vector(const F16* source) {
  const hn::Rebind<hwy::float16_t, Float> halves;
  return hn::PromoteTo(Float(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(source)));
}

HWY_INLINE void store_vector(hn::Vec<Float> values, float* target) {
  hn::StoreU(values, Float(), target);
}
HWY_INLINE void store_vector(hn::Vec<Float> values, Bf16* target) {
  const Words words;
  const hn::Rebind<int32_t, Float> integers;
  const auto bits = hn::BitCast(words, values);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff))));
  const auto nan = hn::Or(upper, hn::Set(words, 0x40));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(values));
  const auto result = hn::BitCast(integers, hn::IfThenElse(is_nan, nan, rounded));
  hn::StoreU(hn::DemoteTo(HalfWords(), result), HalfWords(), reinterpret_cast<uint16_t*>(target));
}
HWY_INLINE void store_vector(hn::Vec<Float> values, F16* target) {
  const hn::Rebind<hwy::float16_t, Float> halves;
  hn::StoreU(hn::DemoteTo(halves, values), halves, reinterpret_cast<hwy::float16_t*>(target));
}

// Of e4m3 the compiler makes what it can: on the CPU it is for checks.
template <class T>
constexpr bool kIsVectorized = (kHasF16 || !std::is_same_v<T, F16>)&&!std::is_same_v<T, E4m3>;

template <class T>
void load_rows(const void* source, const StridedRows& layout, float scale, float* tile,
               int64_t tile_columns) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Float()));
  const auto factor = hn::Set(Float(), scale);
  for (int64_t r = 0; r < layout.rows; ++r) {
    const T* const row = static_cast<const T*>(source) + r * layout.stride;
    float* const out = tile + r * tile_columns;
    int64_t c = 0;
    if constexpr (kIsVectorized<T>) {
      for (; c + lanes <= layout.columns; c += lanes) {
        hn::StoreU(hn::Mul(load_vector(row + c), factor), Float(), out + c);
      }
    }
    for (; c < layout.columns; ++c) {
      out[c] = to_float(row[c]) * scale;
    }
  }
}

template <class T, bool kAccumulate>
void store_rows(const float* tile, int64_t tile_columns, float scale, void* target,
                const StridedRows& layout) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Float()));
  const auto factor = hn::Set(Float(), scale);
  for (int64_t r = 0; r < layout.rows; ++r) {
    const float* const row = tile + r * tile_columns;
    T* const out = static_cast<T*>(target) + r * layout.stride;
    int64_t c = 0;
    if constexpr (kIsVectorized<T>) {
      for (; c + lanes <= layout.columns; c += lanes) {
        auto value = hn::Mul(hn::LoadU(Float(), row + c), factor);
        if constexpr (kAccumulate) {
          value = hn::Add(value, load_vector(out + c));
        }
        store_vector(value, out + c);
      }
    }
    for (; c < layout.columns; ++c) {
      const float value = row[c] * scale;
      round_to(kAccumulate ? value + to_float(out[c]) : value, out + c);
    }
  }
}

void load_rows_of(const void* source, const StridedRows& layout, float scale, float* tile,
                  int64_t tile_columns) {
  switch (layout.dtype) {
    case DType::f32:
      return load_rows<float>(source, layout, scale, tile, tile_columns);
    case DType::bf16:
      return load_rows<Bf16>(source, layout, scale, tile, tile_columns);
    case DType::u8:
      return load_rows<E4m3>(source, layout, scale, tile, tile_columns);
    default:
      return load_rows<F16>(source, layout, scale, tile, tile_columns);
  }
}

template <bool kAccumulate>
void store_rows_of(const float* tile, int64_t tile_columns, float scale, void* target,
                   const StridedRows& layout) {
  switch (layout.dtype) {
    case DType::f32:
      return store_rows<float, kAccumulate>(tile, tile_columns, scale, target, layout);
    case DType::bf16:
      return store_rows<Bf16, kAccumulate>(tile, tile_columns, scale, target, layout);
    default:
      return store_rows<F16, kAccumulate>(tile, tile_columns, scale, target, layout);
  }
}

void store_rows_plain(const float* tile, int64_t tile_columns, float scale, void* target,
                      const StridedRows& layout) {
  store_rows_of<false>(tile, tile_columns, scale, target, layout);
}

void store_rows_added(const float* tile, int64_t tile_columns, float scale, void* target,
                      const StridedRows& layout) {
  store_rows_of<true>(tile, tile_columns, scale, target, layout);
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

namespace {

HWY_EXPORT(load_rows_of);
HWY_EXPORT(store_rows_plain);
HWY_EXPORT(store_rows_added);

void check_dtype(DType dtype) {
  HR_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
           "no arithmetic in {}", to_string(dtype));
}

/// Zeroes what of a dense tile lies outside its upper left [rows, columns].
template <class T>
void clear_border(T* tile, int64_t rows, int64_t columns, int64_t tile_rows, int64_t tile_columns) {
  if (columns < tile_columns) {
    for (int64_t r = 0; r < rows; ++r) {
      std::memset(tile + r * tile_columns + columns, 0,
                  static_cast<size_t>(tile_columns - columns) * sizeof(T));
    }
  }
  std::memset(tile + rows * tile_columns, 0,
              static_cast<size_t>((tile_rows - rows) * tile_columns) * sizeof(T));
}

}  // namespace

void load_tile(const void* source, const StridedRows& layout, float scale, float* tile,
               int64_t tile_rows, int64_t tile_columns) {
  if (layout.dtype != DType::u8) {
    check_dtype(layout.dtype);
  }
  HWY_DYNAMIC_DISPATCH(load_rows_of)(source, layout, scale, tile, tile_columns);
  clear_border(tile, layout.rows, layout.columns, tile_rows, tile_columns);
}

void load_tile_16bit(const void* source, const StridedRows& layout, uint16_t* tile,
                     int64_t tile_rows, int64_t tile_columns) {
  for (int64_t r = 0; r < layout.rows; ++r) {
    std::memcpy(tile + r * tile_columns, static_cast<const uint16_t*>(source) + r * layout.stride,
                static_cast<size_t>(layout.columns) * sizeof(uint16_t));
  }
  clear_border(tile, layout.rows, layout.columns, tile_rows, tile_columns);
}

void store_tile(const float* tile, int64_t tile_columns, float scale, bool accumulate, void* target,
                const StridedRows& layout) {
  check_dtype(layout.dtype);
  if (accumulate) {
    HWY_DYNAMIC_DISPATCH(store_rows_added)(tile, tile_columns, scale, target, layout);
  } else {
    HWY_DYNAMIC_DISPATCH(store_rows_plain)(tile, tile_columns, scale, target, layout);
  }
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
