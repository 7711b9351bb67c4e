#include "device/cpu/row_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/row_kernels_elementwise.cc"
#include "device/cpu/row_kernels_targets.h"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "device/cpu/row_kernels_block.h"
#include "device/cpu/row_kernels_common.h"
#include "device/kernels/elementwise.inl.h"
#include "base/exact_float.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

struct Target;
using Block = SerialBlock<Target>;

template <class T>
void rope_of(const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq, const int32_t* begins,
             const float* cos_sin, float sign) {
  for_each_row(x.rows, x.columns, [&](int64_t row) HWY_ATTR {
    kernels::rope_row(Block(), row_of<T>(x, row), heads, head_dim,
                      cos_sin + kernels::position_of(row, seq, begins) * head_dim, sign);
  });
}

void rope_here(const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq, const int32_t* begins,
               const float* cos_sin, float sign) {
  with_float_type(x.dtype, [&](auto type) {
    rope_of<decltype(type)>(x, heads, head_dim, seq, begins, cos_sin, sign);
  });
}

template <class T>
void swiglu_forward_of(const Matrix& gate, const Matrix& up, const Matrix& out) {
  for_each_piece(out.rows, out.columns, [&](int64_t row, int64_t column, int64_t count) HWY_ATTR {
    kernels::swiglu_forward_row(Block(), row_of<const T>(gate, row) + column,
                                row_of<const T>(up, row) + column, row_of<T>(out, row) + column,
                                count);
  });
}

void swiglu_forward_here(const Matrix& gate, const Matrix& up, const Matrix& out) {
  with_float_type(out.dtype, [&](auto type) { swiglu_forward_of<decltype(type)>(gate, up, out); });
}

template <class T>
void swiglu_backward_of(const Matrix& dout, const Matrix& gate, const Matrix& up,
                        const Matrix& dgate, const Matrix& dup) {
  for_each_piece(dout.rows, dout.columns, [&](int64_t row, int64_t column, int64_t count) HWY_ATTR {
    kernels::swiglu_backward_row(Block(), row_of<const T>(dout, row) + column,
                                 row_of<const T>(gate, row) + column,
                                 row_of<const T>(up, row) + column, row_of<T>(dgate, row) + column,
                                 row_of<T>(dup, row) + column, count);
  });
}

void swiglu_backward_here(const Matrix& dout, const Matrix& gate, const Matrix& up,
                          const Matrix& dgate, const Matrix& dup) {
  with_float_type(dout.dtype, [&](auto type) {
    swiglu_backward_of<decltype(type)>(dout, gate, up, dgate, dup);
  });
}

template <class T>
void add_of(const Matrix& a, const Matrix& b, const Matrix& out) {
  for_each_piece(out.rows, out.columns, [&](int64_t row, int64_t column, int64_t count) HWY_ATTR {
    kernels::add_row(Block(), row_of<const T>(a, row) + column, row_of<const T>(b, row) + column,
                     row_of<T>(out, row) + column, count);
  });
}

void add_here(const Matrix& a, const Matrix& b, const Matrix& out) {
  with_float_type(out.dtype, [&](auto type) { add_of<decltype(type)>(a, b, out); });
}

template <class T>
void add_bias_of(const Matrix& x, const void* bias) {
  for_each_piece(x.rows, x.columns, [&](int64_t row, int64_t column, int64_t count) HWY_ATTR {
    T* target = row_of<T>(x, row) + column;
    kernels::add_row(Block(), static_cast<const T*>(target), static_cast<const T*>(bias) + column,
                     target, count);
  });
}

void add_bias_here(const Matrix& x, const void* bias) {
  with_float_type(x.dtype, [&](auto type) { add_bias_of<decltype(type)>(x, bias); });
}

template <class Source, class Target>
void cast_of(const void* source, void* target, int64_t count) {
  parallel_for_blocks(count, kElementsPerBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    kernels::cast_row(Block(), static_cast<const Source*>(source) + begin,
                      static_cast<Target*>(target) + begin, end - begin);
  });
}

void cast_here(const void* source, DType source_dtype, void* target, DType target_dtype,
               int64_t count) {
  with_float_type(source_dtype, [&](auto from) {
    with_float_type(target_dtype,
                    [&](auto to) { cast_of<decltype(from), decltype(to)>(source, target, count); });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

HWY_EXPORT(rope_here);
HWY_EXPORT(swiglu_forward_here);
HWY_EXPORT(swiglu_backward_here);
HWY_EXPORT(add_here);
HWY_EXPORT(add_bias_here);
HWY_EXPORT(cast_here);

void rope(const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq, const int32_t* begins,
          const float* cos_sin, bool inverse) {
  check_matrix(x, "rope x");
  HR_CHECK(head_dim > 0 && head_dim % 2 == 0 && x.columns == heads * head_dim && seq > 0,
           "rope: {} columns, {} heads of {}, seq {}", x.columns, heads, head_dim, seq);
  HWY_DYNAMIC_DISPATCH(rope_here)(x, heads, head_dim, seq, begins, cos_sin, inverse ? -1.0F : 1.0F);
}

void swiglu_forward(const Matrix& gate, const Matrix& up, const Matrix& out) {
  check_matrix(out, "swiglu out");
  check_like(gate, out, "swiglu gate");
  check_like(up, out, "swiglu up");
  HWY_DYNAMIC_DISPATCH(swiglu_forward_here)(gate, up, out);
}

void swiglu_backward(const Matrix& dout, const Matrix& gate, const Matrix& up, const Matrix& dgate,
                     const Matrix& dup) {
  check_matrix(dout, "swiglu dout");
  check_like(gate, dout, "swiglu gate");
  check_like(up, dout, "swiglu up");
  check_like(dgate, dout, "swiglu dgate");
  check_like(dup, dout, "swiglu dup");
  HWY_DYNAMIC_DISPATCH(swiglu_backward_here)(dout, gate, up, dgate, dup);
}

void add(const Matrix& a, const Matrix& b, const Matrix& out) {
  check_matrix(out, "add out");
  check_like(a, out, "add a");
  check_like(b, out, "add b");
  HWY_DYNAMIC_DISPATCH(add_here)(a, b, out);
}

void add_bias(const Matrix& x, const void* bias) {
  check_matrix(x, "add_bias x");
  HWY_DYNAMIC_DISPATCH(add_bias_here)(x, bias);
}

void cast(const void* source, DType source_dtype, void* target, DType target_dtype,
          Elements count) {
  HWY_DYNAMIC_DISPATCH(cast_here)(source, source_dtype, target, target_dtype, count.count());
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
