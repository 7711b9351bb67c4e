#pragma once

#include <cstdint>

namespace headrace::device::cpu {

/// Columns [begin, end) of a tile; {0, 0} where there are none.
struct ColumnRange {
  int16_t begin = 0;
  int16_t end = 0;
};

/// A dense fp32 tile of scores: rows are queries (of one or several heads), columns are keys. Row r
/// sees the columns `seen[r]`; the others count as -infinity. Columns are a multiple of 16.
struct ScoreTile {
  int64_t rows = 0;
  int64_t columns = 0;
  const ColumnRange* seen = nullptr;  ///< [rows], within the columns
};

/// One step of the running softmax (Milakov and Gimelshein, "Online normalizer calculation for
/// softmax", 2018): turns scores into exp(score - new maximum), 0 where nothing is seen, updates
/// the running maximum and sum of each row ([rows], at first -infinity and 0) and scales the rows
/// of `out` [rows, out_columns], which were weighted by the old maximum.
void softmax_step(const ScoreTile& tile, float* scores, float* row_max, float* row_sum, float* out,
                  int64_t out_columns);

/// row_sum[r] = the sum of out[r][c] * dout[r][c] over c; columns are a multiple of 16.
void row_dots(const float* out, const float* dout, int64_t rows, int64_t columns, float* row_sum);

/// Turns scores into probabilities exp(score - log_sum_exp[r]) and dprobabilities into the gradient
/// of the scores, p * (dp - delta[r]); both 0 where nothing is seen.
void softmax_gradient(const ScoreTile& tile, const float* log_sum_exp, const float* delta,
                      float* scores, float* dprobabilities);

}  // namespace headrace::device::cpu
