#include "device/cuda/cudnn_graph.h"

#include <algorithm>

namespace headrace::device::cuda {

namespace {

/// Strides of a dense tensor.
CudnnDimensions dense(const CudnnDimensions& d) {
  return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1};
}

/// Finalized descriptors of this kind that the attribute holds.
std::vector<CudnnObject> objects_in(CudnnApi& cudnn, const CudnnObject& holder,
                                    CudnnAttribute attribute, CudnnKind kind) {
  const int64_t room = holder.get(attribute, CudnnElement::descriptor, 0, nullptr);
  std::vector<CudnnObject> objects;
  std::vector<CudnnDescriptor> descriptors;
  for (int64_t i = 0; i < room; ++i) {
    objects.emplace_back(cudnn, kind);
    descriptors.push_back(objects.back().descriptor());
  }
  const int64_t count =
      room > 0 ? holder.get(attribute, CudnnElement::descriptor, room, descriptors.data()) : 0;
  objects.erase(objects.begin() + std::min(count, room), objects.end());
  return objects;
}

bool says_deterministic(CudnnApi& cudnn, const CudnnObject& config) {
  CudnnObject engine(cudnn, CudnnKind::engine);
  CudnnDescriptor descriptor = engine.descriptor();
  config.get(CudnnAttribute::config_engine, CudnnElement::descriptor, 1, &descriptor);
  std::array<CudnnNote, 32> notes{};
  const int64_t count = engine.get(CudnnAttribute::engine_numerical_notes,
                                   CudnnElement::numerical_note, std::ssize(notes), notes.data());
  return std::find(notes.begin(), notes.begin() + std::min(count, std::ssize(notes)),
                   CudnnNote::nondeterministic) ==
         notes.begin() + std::min(count, std::ssize(notes));
}

}  // namespace

void check_cudnn(CudnnApi& cudnn, int status, const std::string& what) {
  if (status != kCudnnSuccess) {
    throw CudaError(fmt::format("{} failed: {}", what, cudnn.describe(status)));
  }
}

CudnnObject::CudnnObject(CudnnApi& cudnn, CudnnKind kind) : cudnn_(&cudnn), kind_(kind) {
  CudnnDescriptor made = nullptr;
  check_cudnn(cudnn, cudnn.create_descriptor(kind, &made), name("CreateDescriptor", -1));
  descriptor_ = std::shared_ptr<void>(made, [&cudnn](void* descriptor) {
    cudnn.destroy_descriptor(descriptor);  // frees host memory; what it returns changes nothing
  });
}

CudnnObject& CudnnObject::set(CudnnAttribute attribute, CudnnElement element, int64_t count,
                              const void* elements) {
  check_cudnn(*cudnn_,
              cudnn_->set_attribute(descriptor_.get(), attribute, element, count, elements),
              name("SetAttribute", static_cast<int>(attribute)));
  return *this;
}

CudnnObject& CudnnObject::set(CudnnAttribute attribute, const std::vector<CudnnObject>& objects) {
  std::vector<CudnnDescriptor> descriptors;
  for (const CudnnObject& object : objects) {
    descriptors.push_back(object.descriptor());
    kept_.push_back(object);
  }
  return set(attribute, CudnnElement::descriptor, std::ssize(descriptors), descriptors.data());
}

CudnnObject& CudnnObject::finalize() {
  check_cudnn(*cudnn_, cudnn_->finalize(descriptor_.get()), name("Finalize", -1));
  return *this;
}

int64_t CudnnObject::number(CudnnAttribute attribute) const {
  int64_t value = 0;
  get(attribute, CudnnElement::int64, 1, &value);
  return value;
}

int64_t CudnnObject::get(CudnnAttribute attribute, CudnnElement element, int64_t room,
                         void* elements) const {
  int64_t count = 0;
  check_cudnn(*cudnn_,
              cudnn_->get_attribute(descriptor_.get(), attribute, element, room, &count, elements),
              name("GetAttribute", static_cast<int>(attribute)));
  return count;
}

std::string CudnnObject::name(const char* call, int attribute) const {
  const std::string of =
      fmt::format("cudnnBackend{} of descriptor type {}", call, static_cast<int>(kind_));
  return attribute < 0 ? of : fmt::format("{}, attribute {}", of, attribute);
}

CudnnTensor CudnnGraph::make_tensor(int64_t id, CudnnData type, const CudnnDimensions& dimensions,
                                    const CudnnDimensions& strides, bool is_virtual,
                                    bool is_by_value) {
  constexpr int64_t kAlignment = 16;
  CudnnObject tensor(cudnn_, CudnnKind::tensor);
  tensor.set(CudnnAttribute::tensor_data_type, type)
      .set(CudnnAttribute::tensor_dimensions, std::span<const int64_t>(dimensions))
      .set(CudnnAttribute::tensor_strides, std::span<const int64_t>(strides))
      .set(CudnnAttribute::tensor_unique_id, id)
      .set(CudnnAttribute::tensor_alignment, is_by_value ? int64_t{sizeof(float)} : kAlignment)
      .set(CudnnAttribute::tensor_is_virtual, is_virtual)
      .set(CudnnAttribute::tensor_is_by_value, is_by_value)
      .finalize();
  return tensor;
}

CudnnTensor CudnnGraph::tensor(int64_t id, CudnnData type, const CudnnDimensions& dimensions,
                               const CudnnDimensions& strides) {
  return make_tensor(id, type, dimensions, strides, false, false);
}

CudnnTensor CudnnGraph::number(int64_t id) {
  return make_tensor(id, CudnnData::f32, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

CudnnTensor CudnnGraph::virtual_tensor(CudnnData type, const CudnnDimensions& dimensions) {
  return virtual_tensor(type, dimensions, dense(dimensions));
}

CudnnTensor CudnnGraph::virtual_tensor(CudnnData type, const CudnnDimensions& dimensions,
                                       const CudnnDimensions& strides) {
  return make_tensor(next_++, type, dimensions, strides, true, false);
}

void CudnnGraph::pointwise(CudnnPointwise mode, const CudnnTensor& x, const CudnnTensor& b,
                           const CudnnTensor& y, const CudnnTensor& t, CudnnData precision) {
  CudnnObject how(cudnn_, CudnnKind::pointwise);
  how.set(CudnnAttribute::pointwise_mode, mode)
      .set(CudnnAttribute::pointwise_precision, precision)
      .finalize();
  CudnnObject operation(cudnn_, CudnnKind::operation_pointwise);
  operation.set(CudnnAttribute::operation_pointwise_descriptor, how)
      .set(CudnnAttribute::operation_pointwise_x, *x)
      .set(CudnnAttribute::operation_pointwise_y, *y);
  if (b) {
    operation.set(CudnnAttribute::operation_pointwise_b, *b);
  }
  if (t) {
    operation.set(CudnnAttribute::operation_pointwise_t, *t);
  }
  operations_.push_back(operation.finalize());
}

void CudnnGraph::index(const CudnnTensor& x, int64_t axis, const CudnnTensor& y) {
  CudnnObject how(cudnn_, CudnnKind::pointwise);
  how.set(CudnnAttribute::pointwise_mode, CudnnPointwise::index)
      .set(CudnnAttribute::pointwise_precision, CudnnData::f32)
      .set(CudnnAttribute::pointwise_axis, axis)
      .finalize();
  CudnnObject operation(cudnn_, CudnnKind::operation_pointwise);
  operations_.push_back(operation.set(CudnnAttribute::operation_pointwise_descriptor, how)
                            .set(CudnnAttribute::operation_pointwise_x, *x)
                            .set(CudnnAttribute::operation_pointwise_y, *y)
                            .finalize());
}

void CudnnGraph::matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c) {
  CudnnObject how(cudnn_, CudnnKind::matmul);
  how.set(CudnnAttribute::matmul_precision, CudnnData::f32).finalize();
  CudnnObject operation(cudnn_, CudnnKind::operation_matmul);
  operations_.push_back(operation.set(CudnnAttribute::operation_matmul_descriptor, how)
                            .set(CudnnAttribute::operation_matmul_a, *a)
                            .set(CudnnAttribute::operation_matmul_b, *b)
                            .set(CudnnAttribute::operation_matmul_c, *c)
                            .finalize());
}

void CudnnGraph::reduce(CudnnReduction how, const CudnnTensor& x, const CudnnTensor& y) {
  CudnnObject descriptor(cudnn_, CudnnKind::reduction);
  descriptor.set(CudnnAttribute::reduction_operator, how)
      .set(CudnnAttribute::reduction_precision, CudnnData::f32)
      .finalize();
  CudnnObject operation(cudnn_, CudnnKind::operation_reduction);
  operations_.push_back(operation.set(CudnnAttribute::operation_reduction_descriptor, descriptor)
                            .set(CudnnAttribute::operation_reduction_x, *x)
                            .set(CudnnAttribute::operation_reduction_y, *y)
                            .finalize());
}

void CudnnGraph::reshape(const CudnnTensor& x, const CudnnTensor& y) {
  CudnnObject operation(cudnn_, CudnnKind::operation_reshape);
  operations_.push_back(operation.set(CudnnAttribute::operation_reshape_x, *x)
                            .set(CudnnAttribute::operation_reshape_y, *y)
                            .finalize());
}

std::vector<CudnnConfig> configs_of(CudnnApi& cudnn, const CudnnGraph& graph,
                                    const CudnnTarget& target) {
  CudnnObject whole(cudnn, CudnnKind::operation_graph);
  whole.set(CudnnAttribute::graph_operations, graph.operations());
  if (target.device == nullptr) {
    whole.set(CudnnAttribute::graph_handle, target.handle);
  }
  whole.finalize();
  CudnnObject heuristics(cudnn, CudnnKind::engine_heuristics);
  heuristics.set(CudnnAttribute::heuristics_graph, whole)
      .set(CudnnAttribute::heuristics_mode, CudnnHeuristic::a);
  if (target.device != nullptr) {
    heuristics.set(CudnnAttribute::heuristics_device, *target.device);
  }
  heuristics.finalize();
  std::vector<CudnnConfig> configs;
  for (CudnnObject& config : objects_in(cudnn, heuristics, CudnnAttribute::heuristics_results,
                                        CudnnKind::engine_config)) {
    const Bytes workspace(config.number(CudnnAttribute::config_workspace));
    const bool is_deterministic = says_deterministic(cudnn, config);
    configs.push_back({std::move(config), whole, workspace, is_deterministic});
  }
  return configs;
}

}  // namespace headrace::device::cuda
