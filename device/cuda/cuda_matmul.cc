#include "device/cuda/cuda_matmul.h"

#include <algorithm>

#include "base/log.h"
#include "device/cuda/cuda_launch.h"
#include "device/cuda/kernels/matmul_grid.inl.h"

namespace headrace::device::cuda {

namespace {

// What cuBLASLt may use to split long sums between processors: partial results of a few times the
// size of c, or 32 MiB, which is what NVIDIA recommends for Hopper.
constexpr int64_t kMostWorkspace = int64_t{32} << 20;
constexpr int64_t kLeastWorkspace = int64_t{16} << 10;
constexpr int64_t kPartialResults = 8;
constexpr int64_t kWorkspaceAlignment = 256;

// Not more than the widest load, or products would have other bits where an arena puts a matrix at
// another multiple of it.
uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 16U;
  return static_cast<uint32_t>(bits & ~(bits - 1));
}

bool is_scaled(const LtProduct& product) {
  return product.ab_type == DType::u8;
}

std::string describe(const LtProduct& p) {
  const std::string_view type = is_scaled(p) ? "e4m3" : to_string(p.ab_type);
  return fmt::format("{}{} [{}, {}] ld {} times {}{} [{}, {}] ld {} into {} [{}, {}] ld {}{}", type,
                     p.transpose_a ? "^T" : "", p.a_rows, p.a_columns, p.lda, type,
                     p.transpose_b ? "^T" : "", p.b_rows, p.b_columns, p.ldb, to_string(p.c_type),
                     p.c_rows, p.c_columns, p.ldc, p.has_bias ? " with a bias" : "");
}

size_t workspace_of(const Matrix& c) {
  const int64_t partials = c.rows * c.columns * int64_t{sizeof(float)} * kPartialResults;
  return static_cast<size_t>(std::clamp(partials, kLeastWorkspace, kMostWorkspace));
}

void post_plain(const Gpu& gpu, Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                bool transpose_b, const Matrix& c, bool accumulate) {
  MatmulArguments arguments;
  arguments.a = a.data;
  arguments.b = b.data;
  arguments.c = c.data;
  arguments.a_row = transpose_a ? 1 : a.stride;
  arguments.a_inner = transpose_a ? a.stride : 1;
  arguments.b_inner = transpose_b ? 1 : b.stride;
  arguments.b_column = transpose_b ? b.stride : 1;
  arguments.c_stride = c.stride;
  arguments.rows = c.rows;
  arguments.columns = c.columns;
  arguments.depth = transpose_a ? a.rows : a.columns;
  arguments.accumulate = accumulate;
  constexpr int64_t kTile = MatmulArguments::kTile;
  Launch launch =
      make_launch(KernelId::matmul, a.dtype, ceil_div(c.columns, kTile), ceil_div(c.rows, kTile),
                  256, Matmul<float, float>::kSharedFloats * int64_t{sizeof(float)});
  launch.target_dtype = c.dtype;
  post_launch(gpu, stream, launch, arguments);
}

}  // namespace

LtProduct lt_product(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                     const Matrix& c, size_t workspace, bool allow_tf32) {
  LtProduct product;
  product.transpose_a = transpose_b;
  product.a_rows = b.columns;
  product.a_columns = b.rows;
  product.lda = b.stride;
  product.transpose_b = transpose_a;
  product.b_rows = a.columns;
  product.b_columns = a.rows;
  product.ldb = a.stride;
  product.c_rows = c.columns;
  product.c_columns = c.rows;
  product.ldc = c.stride;
  product.ab_type = a.dtype;
  product.c_type = c.dtype;
  product.allow_tf32 = allow_tf32 && a.dtype == DType::f32;
  product.a_alignment = alignment_of(b.data);
  product.b_alignment = alignment_of(a.data);
  product.c_alignment = alignment_of(c.data);
  product.workspace = workspace;
  return product;
}

Bytes CudaMatmul::scratch(const Matrix& c) {
  // Room to begin at what cuBLASLt wants of its workspace.
  return Bytes(static_cast<int64_t>(workspace_of(c)) + kWorkspaceAlignment);
}

CudaMatmul::Choice CudaMatmul::choose(const LtProduct& product) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(choices_.begin(), choices_.end(),
                                  [&](const auto& kept) { return kept.first == product; });
  if (known != choices_.end()) {
    return known->second;
  }
  gpu_.enter();
  Choice choice;
  const Status status = gpu_.api.lt_choose(product, &choice.algorithm);
  choice.is_found = status.is_ok();
  const bool is_refused = status.library == Status::Library::cublas_lt &&
                          (status.code == kLtNoneFound || status.code == kLtNotSupported);
  // With a bias there is another way.
  const bool is_last = is_refused && !product.has_bias;
  if (is_last && is_scaled(product)) {
    throw CudaError(fmt::format(
        "cuBLASLt has no algorithm for {} on {} ({}); leave headrace.lossy_fp8_forward out",
        describe(product), gpu_.describe(), gpu_.api.describe(status)));
  }
  if (is_last) {
    log_message_once(LogLevel::warning, "cublaslt-none " + describe(product),
                     fmt::format("cuBLASLt has no algorithm for {} on {} ({}): a plain kernel "
                                 "computes it, many times slower",
                                 describe(product), gpu_.describe(), gpu_.api.describe(status)));
  } else if (!is_refused) {
    gpu_.check(status,
               [&] { return "choosing an algorithm of cuBLASLt for " + describe(product); });
  }
  choices_.emplace_back(product, choice);
  return choice;
}

CudaMatmul::Choice CudaMatmul::choose_with_bias(LtProduct& product, const void* bias) {
  product.has_bias = bias != nullptr && alignment_of(bias) == 16;
  Choice choice = choose(product);
  if (!choice.is_found && product.has_bias) {
    product.has_bias = false;
    choice = choose(product);
  }
  return choice;
}

void CudaMatmul::multiply(Stream& stream, const LtProduct& product, const LtAlgorithm& algorithm,
                          bool accumulate, LtOperands operands, Workspace scratch) {
  operands.workspace = align_up(scratch.data, kWorkspaceAlignment);
  const auto call = [](const CudaStream& on, const LtProduct& what, const LtAlgorithm& how,
                       float beta, const LtOperands& with) {
    on.gpu().check(on.gpu().api.lt_multiply(what, how, 1.0F, beta, with, on.handle()),
                   [&] { return "cublasLtMatmul of " + describe(what); });
  };
  cuda_stream(stream).post_to_device(call, product, algorithm, accumulate ? 1.0F : 0.0F, operands);
}

bool CudaMatmul::post(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                      bool transpose_b, const Matrix& c, bool accumulate, const void* bias,
                      Workspace scratch) {
  LtProduct product = lt_product(a, transpose_a, b, transpose_b, c, workspace_of(c), allow_tf32_);
  const Choice choice = choose_with_bias(product, bias);
  if (!choice.is_found) {
    post_plain(gpu_, stream, a, transpose_a, b, transpose_b, c, accumulate);
    return false;
  }
  LtOperands operands;
  operands.a = b.data;
  operands.b = a.data;
  operands.c = c.data;
  operands.bias = bias;
  multiply(stream, product, choice.algorithm, accumulate, operands, scratch);
  return product.has_bias;
}

// c^T = b a^T of column-major matrices is a product of a transposed and a plain one in memory: the
// only layout that the fp8 instructions of Ada and Hopper take.
bool CudaMatmul::post_scaled(Stream& stream, const ScaledMatrix& a, const ScaledMatrix& b,
                             const void* bias, const Matrix& c, bool accumulate,
                             Workspace scratch) {
  LtProduct product = lt_product(codes_of(a), false, codes_of(b), true, c, workspace_of(c), false);
  const Choice choice = choose_with_bias(product, bias);
  LtOperands operands;
  operands.a = b.codes;
  operands.b = a.codes;
  operands.c = c.data;
  operands.bias = bias;
  operands.a_scale = b.scale;
  operands.b_scale = a.scale;
  multiply(stream, product, choice.algorithm, accumulate, operands, scratch);
  return product.has_bias;
}

}  // namespace headrace::device::cuda
