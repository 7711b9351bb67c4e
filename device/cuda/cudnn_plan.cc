#include "device/cuda/cudnn_plan.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "device/cuda/cuda_launch.h"

namespace headrace::device::cuda {

namespace {

/// Ids of what lies in memory, and of numbers.
enum Id : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kSums,
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta,
  kScale,
  kMasked,
  kOne
};

/// Builds the graphs: tensors by their roles, and the steps that both passes share.
class Builder {
 public:
  Builder(CudnnApi& cudnn, const AttentionShape& shape, DType dtype)
      : s_(shape),
        type_(dtype == DType::bf16 ? CudnnData::bf16 : CudnnData::f16),
        graph_(cudnn),
        scale_(graph_.number(kScale)) {}

  CudnnGraph forward() {
    const CudnnTensor x = masked(scaled_scores(transposed(kK, s_.k_stride)));
    const CudnnTensor largest = row_numbers();
    const CudnnTensor sum = row_numbers();
    const CudnnTensor logarithm = row_numbers();
    const CudnnTensor shifted = scores();
    const CudnnTensor weights = scores();
    const CudnnTensor probabilities = scores(type_);
    graph_.reduce(CudnnReduction::max, x, largest);
    graph_.pointwise(CudnnPointwise::subtract, x, largest, shifted);
    graph_.pointwise(CudnnPointwise::exponential, shifted, std::nullopt, weights);
    graph_.reduce(CudnnReduction::add, weights, sum);
    graph_.pointwise(CudnnPointwise::logarithm, sum, std::nullopt, logarithm);
    graph_.pointwise(CudnnPointwise::add, largest, logarithm, row_numbers(kSums));
    graph_.pointwise(CudnnPointwise::divide, weights, sum, probabilities);
    graph_.matmul(probabilities, operand(kV, s_.kv_heads, s_.v_stride),
                  operand(kOut, s_.q_heads, s_.out_stride));
    return std::move(graph_);
  }

  CudnnGraph backward() {
    const CudnnTensor q = operand(kQ, s_.q_heads, s_.q_stride);
    const CudnnTensor k = transposed(kK, s_.k_stride);
    const CudnnTensor dout = operand(kDout, s_.q_heads, s_.out_stride);
    const CudnnTensor delta = delta_of(dout);
    const CudnnTensor from_sum = scores();
    graph_.pointwise(CudnnPointwise::subtract, scaled_scores(k, q), row_numbers(kSums), from_sum);
    const CudnnTensor probabilities = scores();
    graph_.pointwise(CudnnPointwise::exponential, masked(from_sum), std::nullopt, probabilities);
    key_gradient(probabilities, dout, operand(kDv, s_.kv_heads, s_.v_stride));
    const CudnnTensor products = scores();
    const CudnnTensor centered = scores();
    const CudnnTensor weighted = scores();
    const CudnnTensor gradients = scores();
    graph_.matmul(dout, transposed(kV, s_.v_stride), products);
    graph_.pointwise(CudnnPointwise::subtract, products, delta, centered);
    graph_.pointwise(CudnnPointwise::multiply, centered, probabilities, weighted);
    graph_.pointwise(CudnnPointwise::multiply, weighted, scale_, gradients);
    key_gradient(gradients, q, operand(kDk, s_.kv_heads, s_.k_stride));
    const CudnnTensor rows_of_k =
        graph_.virtual_tensor(type_, dimensions(s_.kv_heads), strides(s_.k_stride));
    graph_.reshape(k, rows_of_k);
    graph_.matmul(gradients, rows_of_k, operand(kDq, s_.q_heads, s_.q_stride));
    return std::move(graph_);
  }

 private:
  CudnnDimensions dimensions(int64_t heads) const { return {s_.batch, heads, s_.seq, s_.head_dim}; }
  CudnnDimensions strides(int64_t row) const { return {s_.seq * row, s_.head_dim, row, 1}; }
  CudnnTensor operand(Id id, int64_t heads, int64_t row_stride) {
    return graph_.tensor(id, type_, dimensions(heads), strides(row_stride));
  }
  /// Of keys or values: a column is one of them.
  CudnnTensor transposed(Id id, int64_t row) {
    return graph_.tensor(id, type_, {s_.batch, s_.kv_heads, s_.head_dim, s_.seq},
                         {s_.seq * row, s_.head_dim, 1, row});
  }
  CudnnTensor scores(CudnnData type = CudnnData::f32) {
    return graph_.virtual_tensor(type, {s_.batch, s_.q_heads, s_.seq, s_.seq});
  }
  /// One for each query.
  CudnnTensor row_numbers() {
    return graph_.virtual_tensor(CudnnData::f32, {s_.batch, s_.q_heads, s_.seq, 1});
  }
  CudnnTensor row_numbers(Id id) {
    return graph_.tensor(id, CudnnData::f32, {s_.batch, s_.q_heads, s_.seq, 1},
                         {s_.q_heads * s_.seq, s_.seq, 1, 1});
  }

  CudnnTensor scaled_scores(const CudnnTensor& k) {
    return scaled_scores(k, operand(kQ, s_.q_heads, s_.q_stride));
  }
  CudnnTensor scaled_scores(const CudnnTensor& k, const CudnnTensor& q) {
    const CudnnTensor products = scores();
    const CudnnTensor scaled = scores();
    graph_.matmul(q, k, products);
    graph_.pointwise(CudnnPointwise::multiply, products, scale_, scaled);
    return scaled;
  }
  /// Keys behind the query are -inf.
  CudnnTensor masked(const CudnnTensor& x) {
    const CudnnTensor query = scores(CudnnData::i32);
    const CudnnTensor key = scores(CudnnData::i32);
    const CudnnTensor is_seen = scores(CudnnData::boolean);
    const CudnnTensor y = scores();
    graph_.index(x, 2, query);
    graph_.index(x, 3, key);
    graph_.pointwise(CudnnPointwise::greater_or_equal, query, key, is_seen, std::nullopt,
                     CudnnData::boolean);
    graph_.pointwise(CudnnPointwise::select, x, graph_.number(kMasked), y, is_seen);
    return y;
  }
  /// The sums of dout * out over each head, in memory. The product with 1 stands where dropout
  /// would be; engines look for it.
  CudnnTensor delta_of(const CudnnTensor& dout) {
    const CudnnTensor products = graph_.virtual_tensor(CudnnData::f32, dimensions(s_.q_heads));
    const CudnnTensor sums = row_numbers();
    CudnnTensor delta = row_numbers(kDelta);
    graph_.pointwise(CudnnPointwise::multiply, dout, operand(kOut, s_.q_heads, s_.out_stride),
                     products);
    graph_.reduce(CudnnReduction::add, products, sums);
    graph_.pointwise(CudnnPointwise::multiply, sums, graph_.number(kOne), delta);
    return delta;
  }
  /// target = x^T rows, summed over the query heads of a group.
  void key_gradient(const CudnnTensor& x, const CudnnTensor& rows, const CudnnTensor& target) {
    const int64_t seq = s_.seq;
    const CudnnTensor turned = graph_.virtual_tensor(type_, {s_.batch, s_.q_heads, seq, seq},
                                                     {s_.q_heads * seq * seq, seq * seq, 1, seq});
    graph_.reshape(x, turned);
    if (s_.q_heads == s_.kv_heads) {
      graph_.matmul(turned, rows, target);
      return;
    }
    const CudnnTensor of_heads = graph_.virtual_tensor(type_, dimensions(s_.q_heads));
    graph_.matmul(turned, rows, of_heads);
    graph_.reduce(CudnnReduction::add, of_heads, target);
  }

  const AttentionShape& s_;
  CudnnData type_;
  CudnnGraph graph_;
  CudnnTensor scale_;
};

}  // namespace

CudnnGraph attention_graph(CudnnApi& cudnn, const AttentionShape& shape, DType dtype,
                           AttentionPass pass) {
  Builder builder(cudnn, shape, dtype);
  return pass == AttentionPass::forward ? builder.forward() : builder.backward();
}

std::string cudnn_refusal(const AttentionShape& shape, DType dtype) {
  if (dtype != DType::bf16 && dtype != DType::f16) {
    return "it is for bf16 and fp16";
  }
  if (shape.visible.begins != nullptr) {
    return "documents share sequences, or there is a sliding window";
  }
  // Its kernels move 16 bytes at a time, and do not check.
  constexpr int64_t kElements = 8;
  const int64_t multiples[] = {shape.head_dim, shape.q_stride, shape.k_stride, shape.v_stride,
                               shape.out_stride};
  if (std::any_of(std::begin(multiples), std::end(multiples),
                  [](int64_t number) { return number % kElements != 0; })) {
    return "the size of heads or a row's stride is no multiple of 8";
  }
  if (shape.batch == 0 || shape.seq < 2 || shape.scale <= 0) {
    return "the shape is not for it";
  }
  return "";
}

bool suits_cudnn(const AttentionArguments& a) {
  const void* const all[] = {a.q,  a.k,  a.v,  a.out,         a.dout,
                             a.dq, a.dk, a.dv, a.log_sum_exp, a.delta};
  return std::all_of(std::begin(all), std::end(all), is_on_16_bytes);
}

CudnnContextOwner::CudnnContextOwner(const Gpu& gpu, std::shared_ptr<CudnnApi> cudnn)
    : cudnn_(std::move(cudnn)) {
  gpu.enter();
  check_cudnn(*cudnn_, cudnn_->create(&handle_), "cudnnCreate");
}

CudnnContextOwner::~CudnnContextOwner() {
  cudnn_->destroy(handle_);  // at the end of a run, when nothing depends on it
}

CudnnPlan::CudnnPlan(CudnnContextOwner& context, const AttentionShape& shape, DType dtype,
                     AttentionPass pass, Bytes most)
    : context_(context), pass_(pass) {
  CudnnApi& cudnn = context.api();
  const std::lock_guard lock(context.mutex());
  const CudnnGraph graph = attention_graph(cudnn, shape, dtype, pass);
  Bytes least(std::numeric_limits<int64_t>::max());
  for (const CudnnConfig& config : configs_of(cudnn, graph, {context.handle(), nullptr})) {
    if (!config.is_deterministic) {
      continue;
    }
    least = std::min(least, config.workspace);
    if (config.workspace > most) {
      continue;
    }
    CudnnObject plan(cudnn, CudnnKind::execution_plan);
    plan.set(CudnnAttribute::plan_handle, context.handle())
        .set(CudnnAttribute::plan_config, config.config)
        .finalize();
    workspace_ = Bytes(plan.number(CudnnAttribute::plan_workspace));
    if (workspace_ <= most) {
      plan_ = plan;
      return;
    }
  }
  throw CudaError(least.count() == std::numeric_limits<int64_t>::max()
                      ? std::string("it has none for this shape that is deterministic")
                      : fmt::format("it needs {} of workspace, more than {}", format_bytes(least),
                                    format_bytes(most)));
}

void CudnnPlan::run(StreamHandle stream, const AttentionArguments& a, void* workspace) const {
  const float masked = -std::numeric_limits<float>::infinity();
  const float one = 1;
  struct Named {
    int64_t id;
    const void* data;
  };
  const std::array<Named, 13> all{{{kQ, a.q},
                                   {kK, a.k},
                                   {kV, a.v},
                                   {kOut, a.out},
                                   {kSums, a.log_sum_exp},
                                   {kScale, &a.scale},
                                   {kMasked, &masked},
                                   {kDout, a.dout},
                                   {kDq, a.dq},
                                   {kDk, a.dk},
                                   {kDv, a.dv},
                                   {kDelta, a.delta},
                                   {kOne, &one}}};
  constexpr size_t kOfForward = 7;
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const Named& each :
       std::span(all).first(pass_ == AttentionPass::forward ? kOfForward : all.size())) {
    ids.push_back(each.id);
    pointers.push_back(const_cast<void*>(each.data));
  }
  CudnnApi& cudnn = context_.api();
  CudnnObject pack(cudnn, CudnnKind::variant_pack);
  pack.set(CudnnAttribute::pack_unique_ids, std::span<const int64_t>(ids))
      .set(CudnnAttribute::pack_pointers, CudnnElement::pointer, std::ssize(pointers),
           pointers.data())
      .set(CudnnAttribute::pack_workspace, CudnnElement::pointer, 1, &workspace)
      .finalize();
  const std::lock_guard lock(context_.mutex());
  check_cudnn(cudnn, cudnn.set_stream(context_.handle(), stream), "cudnnSetStream");
  check_cudnn(cudnn, cudnn.execute(context_.handle(), plan_->descriptor(), pack.descriptor()),
              "attention by cuDNN (cudnnBackendExecute)");
}

}  // namespace headrace::device::cuda
