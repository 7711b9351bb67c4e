#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/device/borders.h"
#include "tests/device/device_suite.h"

namespace headrace::device::testing {

/// One attention. `documents`: lengths of those that share each sequence; empty: none do. `window`:
/// positions that one sees, itself among them.
struct Case {
  int64_t batch = 1;
  int64_t seq = 1;
  int64_t q_heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 16;
  DType dtype = DType::f32;
  int64_t padding = 0;  ///< of the row strides
  int64_t shift = 0;
  std::vector<std::vector<int32_t>> documents = {};
  int32_t window = Borders::kAll;

  std::string describe() const {
    return fmt::format("batch {} seq {} heads {}/{} dim {} {} padding {} documents {} window {}",
                       batch, seq, q_heads, kv_heads, head_dim, to_string(dtype), padding,
                       documents.empty() ? 0 : documents.front().size(), window);
  }
  bool sees_all() const { return documents.empty() && window == Borders::kAll; }
  /// Empty where every position sees all before it.
  Borders borders() const {
    Borders all;
    const std::vector<int32_t> whole{static_cast<int32_t>(seq)};
    for (size_t b = 0; !sees_all() && b < static_cast<size_t>(batch); ++b) {
      all.add_sequence(documents.empty() ? whole : documents.at(b), window);
    }
    EXPECT_TRUE(sees_all() || all.begins.size() == static_cast<size_t>(batch * seq));
    return all;
  }
};

/// Naive attention in double over one query row at a time; every function of the kernel from its
/// definition. Bounds follow from the magnitudes of the sums.
class Oracle {
 public:
  Oracle(const Case& c, double scale, const TestMatrix& q, const TestMatrix& k)
      : c_(c), scale_(scale), q_(q), k_(k), begins_(c.borders().begins) {}

  /// The first key that query i sees.
  int64_t first_key(int64_t b, int64_t i) const {
    return begins_.empty() ? 0 : begins_[static_cast<size_t>(b * c_.seq + i)];
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j, bool magnitude = false) const {
    double sum = 0;
    for (int64_t x = 0; x < c_.head_dim; ++x) {
      const double term = query(q_, b, h, i, x) * key(k_, b, h, j, x);
      sum += magnitude ? std::abs(term) : term;
    }
    return sum * scale_;
  }

  /// Row i of the softmax, 0 where nothing is seen; also its log-sum-exp.
  std::vector<double> probabilities(int64_t b, int64_t h, int64_t i, double* log_sum_exp) const {
    std::vector<double> p(static_cast<size_t>(i + 1));
    double max = -INFINITY;
    for (int64_t j = first_key(b, i); j <= i; ++j) {
      p[static_cast<size_t>(j)] = score(b, h, i, j);
      max = std::max(max, p[static_cast<size_t>(j)]);
    }
    double sum = 0;
    for (int64_t j = first_key(b, i); j <= i; ++j) {
      double& value = p[static_cast<size_t>(j)];
      value = std::exp(value - max);
      sum += value;
    }
    for (double& value : p) {
      value /= sum;
    }
    *log_sum_exp = max + std::log(sum);
    return p;
  }

  double query(const TestMatrix& m, int64_t b, int64_t h, int64_t i, int64_t x) const {
    return m(b * c_.seq + i, h * c_.head_dim + x);
  }
  double key(const TestMatrix& m, int64_t b, int64_t h, int64_t j, int64_t x) const {
    return m(b * c_.seq + j, h / (c_.q_heads / c_.kv_heads) * c_.head_dim + x);
  }

  /// Relative error of a probability in fp32: twice the absolute error of a score (the scaled
  /// product and the log-sum-exp), the exponential, the sums over keys.
  double relative_error(int64_t b, int64_t h, int64_t i) const {
    double largest = 0;
    for (int64_t j = first_key(b, i); j <= i; ++j) {
      largest = std::max(largest, score(b, h, i, j, true));
    }
    const auto terms = static_cast<double>(c_.seq + c_.head_dim + 32);
    return (2 * static_cast<double>(c_.head_dim + 4) * largest + terms) * 0x1p-24;
  }

 private:
  Case c_;
  double scale_;
  const TestMatrix& q_;
  const TestMatrix& k_;
  std::vector<int32_t> begins_;
};

/// The operands of one case.
struct Operands {
  Operands(Device& device, Stream& stream, const Case& c)
      : c_(c),
        q(device, stream, c.dtype, rows(), q_columns(), q_columns() + c.padding, c.shift),
        k(device, stream, c.dtype, rows(), kv_columns(), kv_columns() + 2 * c.padding, c.shift),
        v(device, stream, c.dtype, rows(), kv_columns(), kv_columns() + c.padding, c.shift),
        out(device, stream, c.dtype, rows(), q_columns(), q_columns() + 3 * c.padding, c.shift),
        dout(device, stream, c.dtype, rows(), q_columns(), q_columns() + 3 * c.padding, c.shift),
        dq(device, stream, c.dtype, rows(), q_columns(), q_columns() + c.padding, c.shift),
        dk(device, stream, c.dtype, rows(), kv_columns(), kv_columns() + 2 * c.padding, c.shift),
        dv(device, stream, c.dtype, rows(), kv_columns(), kv_columns() + c.padding, c.shift),
        log_sum_exp(device, stream, DType::f32, c.batch * c.q_heads, c.seq, c.seq) {
    if (!c.sees_all()) {
      const Borders borders = c.borders();
      begins.emplace(device, stream, borders.begins);
      ends.emplace(device, stream, borders.ends);
    }
  }

  AttentionShape shape() const {
    AttentionShape shape{c_.batch,        c_.seq,
                         c_.q_heads,      c_.kv_heads,
                         c_.head_dim,     1.0F / std::sqrt(static_cast<float>(c_.head_dim)),
                         q.view().stride, k.view().stride,
                         v.view().stride, out.view().stride};
    if (begins) {
      shape.visible = {begins->data(), ends->data()};
    }
    return shape;
  }
  void fill(Random& random) {
    for (TestMatrix* matrix : {&q, &k, &v, &dout}) {
      matrix->fill_normal(random);
    }
  }

 private:
  Case c_;
  int64_t rows() const { return c_.batch * c_.seq; }
  int64_t q_columns() const { return c_.q_heads * c_.head_dim; }
  int64_t kv_columns() const { return c_.kv_heads * c_.head_dim; }

 public:
  TestMatrix q, k, v, out, dout, dq, dk, dv, log_sum_exp;
  std::optional<TestArray<int32_t>> begins, ends;
};

/// Attention through the device, against its definition.
class AttentionTest : public DeviceTest {
 protected:
  void run(const Case& c, Operands& o) {
    const Workspace workspace = scratch(kernels().attention_scratch(o.shape(), c.dtype));
    kernels().attention_forward(*stream_, o.shape(), c.dtype, o.q.data(), o.k.data(), o.v.data(),
                                o.out.data(), o.log_sum_exp.data<float>(), workspace);
    kernels().attention_backward(*stream_, o.shape(), c.dtype, o.q.data(), o.k.data(), o.v.data(),
                                 o.out.data(), o.dout.data(), o.log_sum_exp.data<float>(),
                                 o.dq.data(), o.dk.data(), o.dv.data(), workspace);
    for (TestMatrix* result : {&o.out, &o.log_sum_exp, &o.dq, &o.dk, &o.dv}) {
      result->download();
    }
  }

  /// Error of a factor of a product that CUDA devices round to the dtype: tensor cores take it so.
  static double weight_error(const Case& c, double value) {
    return GetParam().name == "cpu" || c.dtype == DType::f32 ? 0 : rounding_error(c.dtype, value);
  }

  void check_forward(const Case& c, const Operands& o, const Oracle& oracle) {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.q_heads; ++h) {
        for (int64_t i = 0; i < c.seq && !HasFailure(); ++i) {
          double log_sum_exp = 0;
          const auto p = oracle.probabilities(b, h, i, &log_sum_exp);
          const double error = oracle.relative_error(b, h, i);
          const auto where = [&] {
            return fmt::format("{} at ({}, {}, {})", c.describe(), b, h, i);
          };
          expect_near(o.log_sum_exp(b * c.q_heads + h, i), log_sum_exp,
                      error + 0x1p-23 * std::abs(log_sum_exp),
                      [&] { return "log_sum_exp of " + where(); });
          for (int64_t x = 0; x < c.head_dim; ++x) {
            double sum = 0;
            double bound = 0;
            for (int64_t j = oracle.first_key(b, i); j <= i; ++j) {
              const double probability = p[static_cast<size_t>(j)];
              const double v = oracle.key(o.v, b, h, j, x);
              sum += probability * v;
              bound += (2 * error * probability + weight_error(c, probability)) * std::abs(v);
            }
            expect_near(oracle.query(o.out, b, h, i, x), sum, bound + rounding_error(c.dtype, sum),
                        [&] { return "out of " + where(); });
          }
        }
      }
    }
  }

  /// dk and dv [rows, kv_heads * head_dim] with their error bounds, summed over the query heads.
  struct KeyGradients {
    explicit KeyGradients(size_t size) : dk(size), dk_bound(size), dv(size), dv_bound(size) {}
    std::vector<double> dk, dk_bound, dv, dv_bound;
  };

  /// Gradients from the definition, with the `out` that the kernel was given: checks row i of dq
  /// and adds to `sums`.
  void check_query_gradient(const Case& c, const Operands& o, const Oracle& oracle, double scale,
                            int64_t b, int64_t h, int64_t i, KeyGradients& sums) {
    double log_sum_exp = 0;
    const auto p = oracle.probabilities(b, h, i, &log_sum_exp);
    const double error = 2 * oracle.relative_error(b, h, i);
    const auto dot = [&](const auto& value) {
      std::pair<double, double> sum_and_magnitude;
      for (int64_t x = 0; x < c.head_dim; ++x) {
        const double term = oracle.query(o.dout, b, h, i, x) * value(x);
        sum_and_magnitude.first += term;
        sum_and_magnitude.second += std::abs(term);
      }
      return sum_and_magnitude;
    };
    const auto delta = dot([&](int64_t x) { return oracle.query(o.out, b, h, i, x); });
    std::vector<double> dq(static_cast<size_t>(c.head_dim)), dq_bound(dq);
    for (int64_t j = oracle.first_key(b, i); j <= i; ++j) {
      const double probability = p[static_cast<size_t>(j)];
      const auto dp = dot([&](int64_t x) { return oracle.key(o.v, b, h, j, x); });
      const double ds = probability * (dp.first - delta.first) * scale;
      const double ds_bound = error * probability * (dp.second + delta.second) * scale +
                              weight_error(c, ds / scale) * scale;
      const int64_t head = h / (c.q_heads / c.kv_heads);
      for (int64_t x = 0; x < c.head_dim; ++x) {
        const double q = oracle.query(o.q, b, h, i, x);
        const double k = oracle.key(o.k, b, h, j, x);
        const double dv_term = probability * oracle.query(o.dout, b, h, i, x);
        dq[static_cast<size_t>(x)] += ds * k;
        dq_bound[static_cast<size_t>(x)] += ds_bound * std::abs(k);
        const auto index =
            static_cast<size_t>(((b * c.seq + j) * c.kv_heads + head) * c.head_dim + x);
        sums.dk[index] += ds * q;
        sums.dk_bound[index] += ds_bound * std::abs(q);
        sums.dv[index] += dv_term;
        sums.dv_bound[index] +=
            error * std::abs(dv_term) +
            weight_error(c, probability) * std::abs(oracle.query(o.dout, b, h, i, x));
      }
    }
    for (int64_t x = 0; x < c.head_dim; ++x) {
      const double value = dq[static_cast<size_t>(x)];
      expect_near(oracle.query(o.dq, b, h, i, x), value,
                  dq_bound[static_cast<size_t>(x)] + rounding_error(c.dtype, value), [&] {
                    return fmt::format("dq of {} at ({}, {}, {}, {})", c.describe(), b, h, i, x);
                  });
    }
  }

  void check_backward(const Case& c, const Operands& o, const Oracle& oracle, double scale) {
    KeyGradients sums(static_cast<size_t>(c.batch * c.seq * c.kv_heads * c.head_dim));
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.q_heads; ++h) {
        for (int64_t i = 0; i < c.seq && !HasFailure(); ++i) {
          check_query_gradient(c, o, oracle, scale, b, h, i, sums);
        }
      }
    }
    const auto expect_sums = [&](const TestMatrix& actual, const std::vector<double>& expected,
                                 const std::vector<double>& bound, const char* name) {
      for (int64_t r = 0; r < actual.rows() && !HasFailure(); ++r) {
        for (int64_t x = 0; x < actual.columns(); ++x) {
          const auto index = static_cast<size_t>(r * actual.columns() + x);
          expect_near(actual(r, x), expected[index],
                      bound[index] + rounding_error(c.dtype, expected[index]), [&] {
                        return fmt::format("{} of {} at ({}, {})", name, c.describe(), r, x);
                      });
        }
      }
    };
    expect_sums(o.dk, sums.dk, sums.dk_bound, "dk");
    expect_sums(o.dv, sums.dv, sums.dv_bound, "dv");
  }

  void check(const Case& c, uint64_t seed) {
    Operands o(*device_, *stream_, c);
    Random random(seed, 0);
    o.fill(random);
    run(c, o);
    const double scale = o.shape().scale;
    const Oracle oracle(c, scale, o.q, o.k);
    check_forward(c, o, oracle);
    check_backward(c, o, oracle, scale);
  }
};

}  // namespace headrace::device::testing
