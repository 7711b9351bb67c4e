#include "device/cpu/attention_tiles.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention_tiles.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// math-inl.h is included after foreach_target.h, once per instruction set.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
// At most 16 lanes, so that tiles of 16n columns need no tail.
using Float = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<Float>;

/// e^x for x <= 0 or NaN, which Highway's Exp would turn into 0.
HWY_INLINE FloatVec exp_keeping_nan(FloatVec x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(Float(), x));
}

/// Of a vector at `column`, the lanes below `limit`.
HWY_INLINE hn::Mask<Float> below_limit(int64_t column, int64_t limit) {
  return hn::FirstN(Float(), static_cast<size_t>(limit > column ? limit - column : 0));
}

/// Of a vector at `column`, the lanes that are seen.
HWY_INLINE hn::Mask<Float> seen_lanes(int64_t column, ColumnRange seen) {
  return hn::AndNot(below_limit(column, seen.begin), below_limit(column, seen.end));
}

float max_of(const float* row, ColumnRange seen, float start) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Float()));
  FloatVec max = hn::Set(Float(), start);
  for (int64_t c = seen.begin / lanes * lanes; c < seen.end; c += lanes) {
    const FloatVec scores = hn::LoadU(Float(), row + c);
    const bool is_whole = c >= seen.begin && c + lanes <= seen.end;
    max = hn::Max(max, is_whole
                           ? scores
                           : hn::IfThenElse(seen_lanes(c, seen), scores, hn::Set(Float(), start)));
  }
  return hn::GetLane(hn::MaxOfLanes(Float(), max));
}

void softmax_step_all(const ScoreTile& tile, float* scores, float* row_max, float* row_sum,
                      float* out, int64_t out_columns) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Float()));
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* const row = scores + r * tile.columns;
    const ColumnRange seen = tile.seen[r];
    const float old_max = row_max[r];
    const float new_max = max_of(row, seen, old_max);
    const FloatVec shift = hn::Set(Float(), new_max);
    FloatVec sum = hn::Zero(Float());
    int64_t c = 0;
    for (; c + lanes <= seen.begin; c += lanes) {
      hn::StoreU(hn::Zero(Float()), Float(), row + c);
    }
    for (; c < seen.end; c += lanes) {
      const FloatVec p = exp_keeping_nan(hn::Sub(hn::LoadU(Float(), row + c), shift));
      const FloatVec p_seen = hn::IfThenElseZero(seen_lanes(c, seen), p);
      hn::StoreU(p_seen, Float(), row + c);
      sum = hn::Add(sum, p_seen);
    }
    for (; c < tile.columns; c += lanes) {
      hn::StoreU(hn::Zero(Float()), Float(), row + c);
    }
    if (seen.end == 0) {
      continue;
    }
    // At the first step there is nothing to scale, and -infinity - (-infinity) must not make NaN.
    const float factor = row_sum[r] == 0 ? 0.0F : std::exp(old_max - new_max);
    row_max[r] = new_max;
    row_sum[r] = row_sum[r] * factor + hn::GetLane(hn::SumOfLanes(Float(), sum));
    if (factor == 1.0F) {
      continue;
    }
    const FloatVec scale = hn::Set(Float(), factor);
    float* const out_row = out + r * out_columns;
    for (int64_t k = 0; k < out_columns; k += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(Float(), out_row + k), scale), Float(), out_row + k);
    }
  }
}

void row_dots_all(const float* out, const float* dout, int64_t rows, int64_t columns,
                  float* row_sum) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Float()));
  for (int64_t r = 0; r < rows; ++r) {
    FloatVec sum = hn::Zero(Float());
    for (int64_t c = r * columns; c < (r + 1) * columns; c += lanes) {
      sum = hn::MulAdd(hn::LoadU(Float(), out + c), hn::LoadU(Float(), dout + c), sum);
    }
    row_sum[r] = hn::GetLane(hn::SumOfLanes(Float(), sum));
  }
}

void softmax_gradient_all(const ScoreTile& tile, const float* log_sum_exp, const float* delta,
                          float* scores, float* dprobabilities) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Float()));
  for (int64_t r = 0; r < tile.rows; ++r) {
    const FloatVec shift = hn::Set(Float(), log_sum_exp[r]);
    const FloatVec mean = hn::Set(Float(), delta[r]);
    float* const p_row = scores + r * tile.columns;
    float* const d_row = dprobabilities + r * tile.columns;
    for (int64_t c = 0; c < tile.columns; c += lanes) {
      const auto seen = seen_lanes(c, tile.seen[r]);
      const FloatVec p =
          hn::IfThenElseZero(seen, exp_keeping_nan(hn::Sub(hn::LoadU(Float(), p_row + c), shift)));
      const FloatVec d = hn::Mul(p, hn::Sub(hn::LoadU(Float(), d_row + c), mean));
      hn::StoreU(p, Float(), p_row + c);
      hn::StoreU(hn::IfThenElseZero(seen, d), Float(), d_row + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

namespace {

HWY_EXPORT(softmax_step_all);
HWY_EXPORT(row_dots_all);
HWY_EXPORT(softmax_gradient_all);

}  // namespace

void softmax_step(const ScoreTile& tile, float* scores, float* row_max, float* row_sum, float* out,
                  int64_t out_columns) {
  HWY_DYNAMIC_DISPATCH(softmax_step_all)(tile, scores, row_max, row_sum, out, out_columns);
}

void row_dots(const float* out, const float* dout, int64_t rows, int64_t columns, float* row_sum) {
  HWY_DYNAMIC_DISPATCH(row_dots_all)(out, dout, rows, columns, row_sum);
}

void softmax_gradient(const ScoreTile& tile, const float* log_sum_exp, const float* delta,
                      float* scores, float* dprobabilities) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_all)(tile, log_sum_exp, delta, scores, dprobabilities);
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
