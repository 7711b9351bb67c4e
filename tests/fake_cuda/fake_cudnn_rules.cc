#include "tests/fake_cuda/fake_cudnn_rules.h"

namespace headrace::device::testing {

using cuda::CudnnAttribute;
using cuda::CudnnElement;
using cuda::CudnnKind;

namespace {

constexpr int64_t kAny = 1 << 20;  // elements

}  // namespace

const std::map<CudnnAttribute, CudnnRule>& cudnn_rules() {
  using A = CudnnAttribute;
  using K = CudnnKind;
  constexpr auto kEnum = sizeof(int);
  const auto to = [](K kind, bool is_needed = true) {
    return CudnnRule{kind, CudnnElement::descriptor, sizeof(void*), 1, is_needed};
  };
  static const std::map<A, CudnnRule> all = {
      {A::pointwise_mode, {K::pointwise, CudnnElement::pointwise_mode, kEnum}},
      {A::pointwise_precision, {K::pointwise, CudnnElement::data_type, kEnum}},
      {A::pointwise_axis, {K::pointwise, CudnnElement::int64, 8, 1, false}},
      {A::heuristics_mode, {K::engine_heuristics, CudnnElement::heuristic_mode, kEnum}},
      {A::heuristics_graph, to(K::engine_heuristics)},
      {A::plan_handle, {K::execution_plan, CudnnElement::handle, 8}},
      {A::plan_config, to(K::execution_plan)},
      {A::operation_pointwise_descriptor, to(K::operation_pointwise)},
      {A::operation_pointwise_x, to(K::operation_pointwise)},
      {A::operation_pointwise_b, to(K::operation_pointwise, false)},
      {A::operation_pointwise_y, to(K::operation_pointwise)},
      {A::operation_pointwise_t, to(K::operation_pointwise, false)},
      {A::graph_handle, {K::operation_graph, CudnnElement::handle, 8}},
      {A::graph_operations, {K::operation_graph, CudnnElement::descriptor, 8, kAny}},
      {A::tensor_alignment, {K::tensor, CudnnElement::int64, 8}},
      {A::tensor_data_type, {K::tensor, CudnnElement::data_type, kEnum}},
      {A::tensor_dimensions, {K::tensor, CudnnElement::int64, 8, 8}},
      {A::tensor_strides, {K::tensor, CudnnElement::int64, 8, 8}},
      {A::tensor_unique_id, {K::tensor, CudnnElement::int64, 8}},
      {A::tensor_is_virtual, {K::tensor, CudnnElement::boolean, 1, 1, false}},
      {A::tensor_is_by_value, {K::tensor, CudnnElement::boolean, 1, 1, false}},
      {A::pack_unique_ids, {K::variant_pack, CudnnElement::int64, 8, kAny}},
      {A::pack_pointers, {K::variant_pack, CudnnElement::pointer, 8, kAny}},
      {A::pack_workspace, {K::variant_pack, CudnnElement::pointer, 8}},
      {A::matmul_precision, {K::matmul, CudnnElement::data_type, kEnum}},
      {A::operation_matmul_a, to(K::operation_matmul)},
      {A::operation_matmul_b, to(K::operation_matmul)},
      {A::operation_matmul_c, to(K::operation_matmul)},
      {A::operation_matmul_descriptor, to(K::operation_matmul)},
      {A::reduction_operator, {K::reduction, CudnnElement::reduction_operator, kEnum}},
      {A::reduction_precision, {K::reduction, CudnnElement::data_type, kEnum}},
      {A::operation_reduction_x, to(K::operation_reduction)},
      {A::operation_reduction_y, to(K::operation_reduction)},
      {A::operation_reduction_descriptor, to(K::operation_reduction)},
      {A::operation_reshape_x, to(K::operation_reshape)},
      {A::operation_reshape_y, to(K::operation_reshape)},
  };
  return all;
}

}  // namespace headrace::device::testing
