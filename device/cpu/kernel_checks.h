#pragma once

#include "device/kernels.h"

/// Preconditions of Kernels, checked when work is posted: they throw InternalError with the values.
namespace headrace::device::cpu {

/// A matrix of an arithmetic dtype with sane sizes, its data there and aligned to its elements.
void check_matrix(const Matrix& matrix, const char* name);
void check_same_shape(const Matrix& a, const Matrix& b, const char* names);
void check_same_dtype(const Matrix& a, const Matrix& b, const char* names);
/// `pointer` is there where `count` says that it is used.
void check_pointer(const void* pointer, int64_t count, const char* name);

void check_matmul_shapes(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                         const Matrix& c);
void check_attention_shape(const AttentionShape& shape, DType dtype);
void check_cross_entropy_state(const CrossEntropyState& state, int64_t tokens);

}  // namespace headrace::device::cpu
