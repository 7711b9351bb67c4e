#include "tests/fake_cuda/fake_cudnn.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/fake_cuda/fake_cudnn_rules.h"

namespace headrace::device::testing {

using cuda::CudnnAttribute;
using cuda::CudnnData;
using cuda::CudnnDescriptor;
using cuda::CudnnElement;
using cuda::CudnnHandle;
using cuda::CudnnKind;

namespace {

constexpr int kBadParameter = 2000;
constexpr int kExecutionFailed = 5000;

bool is_operation(CudnnKind kind) {
  return kind == CudnnKind::operation_pointwise || kind == CudnnKind::operation_matmul ||
         kind == CudnnKind::operation_reduction || kind == CudnnKind::operation_reshape;
}

/// Those that lie in memory, or are numbers of the host, each once.
std::map<int64_t, FakeTensor> outside(const std::vector<FakeOperation>& graph) {
  std::map<int64_t, FakeTensor> tensors;
  const auto add = [&](const FakeTensor& tensor) {
    if (!tensor.is_virtual) {
      tensors.emplace(tensor.id, tensor);
    }
  };
  for (const FakeOperation& each : graph) {
    std::for_each(each.inputs.begin(), each.inputs.end(), add);
    add(each.output);
  }
  return tensors;
}

}  // namespace

FakeCudnn::FakeCudnn(std::shared_ptr<FakeCuda> gpu) : FakeCudnn(std::move(gpu), Options()) {}

FakeCudnn::FakeCudnn(std::shared_ptr<FakeCuda> gpu, const Options& options)
    : gpu_(std::move(gpu)), options_(options) {}

void FakeCudnn::fail_call(const std::string& call, int64_t skipped) {
  const std::lock_guard lock(mutex_);
  failures_[call] = skipped;
}

int64_t FakeCudnn::calls(const std::string& call) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(call);
  return found != calls_.end() ? found->second : 0;
}

int64_t FakeCudnn::live_objects() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(handles_.size() + descriptors_.size());
}

/// Of every call, which holds the mutex.
int FakeCudnn::enter(const char* call) {
  ++calls_[call];
  const auto failure = failures_.find(call);
  if (failure == failures_.end() || failure->second-- > 0) {
    return cuda::kCudnnSuccess;
  }
  failures_.erase(failure);
  return kExecutionFailed;
}

FakeCudnn::Descriptor* FakeCudnn::find(CudnnDescriptor descriptor) {
  const auto found = descriptors_.find(descriptor);
  return found != descriptors_.end() ? found->second.get() : nullptr;
}

FakeCudnn::Descriptor* FakeCudnn::find_final(CudnnDescriptor descriptor, CudnnKind kind) {
  Descriptor* const found = find(descriptor);
  return found != nullptr && found->is_final && found->kind == kind ? found : nullptr;
}

template <class T>
T FakeCudnn::value(const Descriptor& of, CudnnAttribute attribute, T otherwise) {
  const auto found = of.attributes.find(attribute);
  if (found == of.attributes.end()) {
    return otherwise;
  }
  T result{};
  std::memcpy(&result, found->second.bytes.data(), sizeof(T));
  return result;
}

FakeCudnn::Descriptor* FakeCudnn::referred(const Descriptor& of, CudnnAttribute attribute,
                                           CudnnKind kind) {
  return find_final(value<CudnnDescriptor>(of, attribute), kind);
}

int FakeCudnn::create(CudnnHandle* handle) {
  const std::lock_guard lock(mutex_);
  if (const int status = enter("create"); status != 0) {
    return status;
  }
  *handle = reinterpret_cast<CudnnHandle>(next_ += 64);  // NOLINT: never followed
  handles_[*handle] = nullptr;
  return 0;
}

int FakeCudnn::destroy(CudnnHandle handle) {
  const std::lock_guard lock(mutex_);
  return handles_.erase(handle) == 1 ? enter("destroy") : kBadParameter;
}

int FakeCudnn::set_stream(CudnnHandle handle, cuda::StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (const int status = enter("set_stream"); status != 0) {
    return status;
  }
  const auto found = handles_.find(handle);
  if (found == handles_.end()) {
    return kBadParameter;
  }
  found->second = stream;
  return 0;
}

int FakeCudnn::create_descriptor(CudnnKind kind, CudnnDescriptor* descriptor) {
  const std::lock_guard lock(mutex_);
  if (const int status = enter("create_descriptor"); status != 0) {
    return status;
  }
  auto made = std::make_unique<Descriptor>();
  made->kind = kind;
  *descriptor = made.get();
  descriptors_[*descriptor] = std::move(made);
  return 0;
}

int FakeCudnn::destroy_descriptor(CudnnDescriptor descriptor) {
  const std::lock_guard lock(mutex_);
  return descriptors_.erase(descriptor) == 1 ? enter("destroy_descriptor") : kBadParameter;
}

int FakeCudnn::set_attribute(CudnnDescriptor descriptor, CudnnAttribute attribute,
                             CudnnElement element, int64_t count, const void* elements) {
  const std::lock_guard lock(mutex_);
  if (const int status = enter("set_attribute"); status != 0) {
    return status;
  }
  Descriptor* const found = find(descriptor);
  const auto rule = cudnn_rules().find(attribute);
  if (found == nullptr || found->is_final || rule == cudnn_rules().end() ||
      rule->second.kind != found->kind || rule->second.element != element || count < 1 ||
      count > rule->second.most || elements == nullptr) {
    return kBadParameter;
  }
  const auto* const begin = static_cast<const std::byte*>(elements);
  found->attributes[attribute] = {count,
                                  {begin, begin + static_cast<size_t>(count) * rule->second.size}};
  return 0;
}

int FakeCudnn::finalize(CudnnDescriptor descriptor) {
  const std::lock_guard lock(mutex_);
  if (const int status = enter("finalize"); status != 0) {
    return status;
  }
  Descriptor* const found = find(descriptor);
  if (found == nullptr || found->is_final) {
    return kBadParameter;
  }
  for (const auto& [attribute, rule] : cudnn_rules()) {
    if (rule.kind == found->kind && rule.is_needed && !found->attributes.contains(attribute)) {
      return kBadParameter;
    }
  }
  found->is_final = finish(*found);
  return found->is_final ? 0 : kBadParameter;
}

bool FakeCudnn::finish(Descriptor& descriptor) {
  using A = CudnnAttribute;
  if (is_operation(descriptor.kind)) {
    const auto made = operation(descriptor);
    return made && made->is_sound();
  }
  switch (descriptor.kind) {
    case CudnnKind::tensor:
      return check_tensor(descriptor);
    case CudnnKind::operation_graph:
      return finish_graph(descriptor);
    case CudnnKind::engine_heuristics: {
      const Descriptor* const graph =
          referred(descriptor, A::heuristics_graph, CudnnKind::operation_graph);
      descriptor.graph = graph != nullptr ? graph->graph : nullptr;
      return graph != nullptr;
    }
    case CudnnKind::execution_plan: {
      const Descriptor* const config =
          referred(descriptor, A::plan_config, CudnnKind::engine_config);
      descriptor.graph = config != nullptr ? config->graph : nullptr;
      return config != nullptr && handles_.contains(value<CudnnHandle>(descriptor, A::plan_handle));
    }
    case CudnnKind::variant_pack:
      return descriptor.attributes.at(A::pack_unique_ids).count ==
             descriptor.attributes.at(A::pack_pointers).count;
    case CudnnKind::pointwise:
    case CudnnKind::matmul:
    case CudnnKind::reduction:
      return true;
    default:
      return false;
  }
}

bool FakeCudnn::check_tensor(const Descriptor& descriptor) const {
  using A = CudnnAttribute;
  const int64_t alignment = value<int64_t>(descriptor, A::tensor_alignment);
  return descriptor.attributes.at(A::tensor_dimensions).count == 4 &&
         descriptor.attributes.at(A::tensor_strides).count == 4 && alignment > 0 &&
         !(value(descriptor, A::tensor_is_virtual, false) &&
           value(descriptor, A::tensor_is_by_value, false));
}

std::optional<FakeTensor> FakeCudnn::tensor(const Descriptor& of, CudnnAttribute attribute) {
  using A = CudnnAttribute;
  const Descriptor* const found = referred(of, attribute, CudnnKind::tensor);
  if (found == nullptr) {
    return std::nullopt;
  }
  FakeTensor made;
  made.id = value<int64_t>(*found, A::tensor_unique_id);
  made.type = value<CudnnData>(*found, A::tensor_data_type);
  made.dimensions = value<std::array<int64_t, 4>>(*found, A::tensor_dimensions);
  made.strides = value<std::array<int64_t, 4>>(*found, A::tensor_strides);
  made.alignment = value<int64_t>(*found, A::tensor_alignment);
  made.is_virtual = value(*found, A::tensor_is_virtual, false);
  made.is_by_value = value(*found, A::tensor_is_by_value, false);
  return made;
}

std::optional<FakeOperation> FakeCudnn::operation(const Descriptor& descriptor) {
  using A = CudnnAttribute;
  struct Ports {
    std::vector<A> inputs;
    A output;
    std::optional<std::pair<A, CudnnKind>> how;
  };
  static const std::map<CudnnKind, Ports> all = {
      {CudnnKind::operation_pointwise,
       {{A::operation_pointwise_x, A::operation_pointwise_b, A::operation_pointwise_t},
        A::operation_pointwise_y,
        {{A::operation_pointwise_descriptor, CudnnKind::pointwise}}}},
      {CudnnKind::operation_matmul,
       {{A::operation_matmul_a, A::operation_matmul_b},
        A::operation_matmul_c,
        {{A::operation_matmul_descriptor, CudnnKind::matmul}}}},
      {CudnnKind::operation_reduction,
       {{A::operation_reduction_x},
        A::operation_reduction_y,
        {{A::operation_reduction_descriptor, CudnnKind::reduction}}}},
      {CudnnKind::operation_reshape, {{A::operation_reshape_x}, A::operation_reshape_y, {}}}};
  const Ports& ports = all.at(descriptor.kind);
  FakeOperation made;
  made.kind = descriptor.kind;
  if (ports.how) {
    const Descriptor* const how = referred(descriptor, ports.how->first, ports.how->second);
    if (how == nullptr) {
      return std::nullopt;
    }
    made.mode = value(*how, A::pointwise_mode, made.mode);
    made.axis = value(*how, A::pointwise_axis, int64_t{-1});
    made.reduction = value(*how, A::reduction_operator, made.reduction);
  }
  for (const A input : ports.inputs) {
    const auto found = tensor(descriptor, input);
    if (!found && descriptor.attributes.contains(input)) {
      return std::nullopt;
    }
    if (found) {
      made.inputs.push_back(*found);
    }
  }
  const auto output = tensor(descriptor, ports.output);
  made.output = output.value_or(FakeTensor());
  return output ? std::optional(made) : std::nullopt;
}

/// Its operations in order; a virtual tensor is written before it is read, and each once.
bool FakeCudnn::finish_graph(Descriptor& descriptor) {
  const Attribute& held = descriptor.attributes.at(CudnnAttribute::graph_operations);
  auto graph = std::make_shared<Graph>();
  std::set<int64_t> written;
  for (size_t i = 0; i < static_cast<size_t>(held.count); ++i) {
    CudnnDescriptor each = nullptr;
    std::memcpy(&each, held.bytes.data() + i * sizeof(each), sizeof(each));
    const Descriptor* const found = find(each);
    if (found == nullptr || !found->is_final || !is_operation(found->kind)) {
      return false;
    }
    graph->push_back(*operation(*found));
    for (const FakeTensor& input : graph->back().inputs) {
      if (input.is_virtual && !written.contains(input.id)) {
        return false;
      }
    }
    if (!written.insert(graph->back().output.id).second) {
      return false;
    }
  }
  descriptor.graph = graph;
  return handles_.contains(value<CudnnHandle>(descriptor, CudnnAttribute::graph_handle));
}

bool FakeCudnn::has_engine(const Graph& graph) const {
  return std::all_of(graph.begin(), graph.end(), [&](const FakeOperation& each) {
    return each.output.dimensions[2] <= options_.longest;
  });
}

int64_t FakeCudnn::workspace_of(const Graph& graph) const {
  int64_t scores = 0;
  for (const FakeOperation& each : graph) {
    if (each.kind == CudnnKind::operation_reshape) {
      scores = std::max(scores, each.output.count());
    }
  }
  return std::max(options_.least_workspace, scores * options_.workspace_of_score);
}

int FakeCudnn::get_attribute(CudnnDescriptor descriptor, CudnnAttribute attribute,
                             CudnnElement element, int64_t room, int64_t* count, void* elements) {
  using A = CudnnAttribute;
  const std::lock_guard lock(mutex_);
  if (const int status = enter("get_attribute"); status != 0) {
    return status;
  }
  const Descriptor* const from = find(descriptor);
  if (from == nullptr || !from->is_final || from->graph == nullptr) {
    return kBadParameter;
  }
  const auto is = [&](CudnnKind kind, A wanted, CudnnElement of) {
    return from->kind == kind && attribute == wanted && element == of;
  };
  if (is(CudnnKind::engine_heuristics, A::heuristics_results, CudnnElement::descriptor) ||
      is(CudnnKind::engine_config, A::config_engine, CudnnElement::descriptor)) {
    *count = has_engine(*from->graph) ? 1 : 0;
    if (room > 0 && *count > 0) {
      Descriptor* const target = find(*static_cast<CudnnDescriptor*>(elements));
      const CudnnKind wanted =
          from->kind == CudnnKind::engine_heuristics ? CudnnKind::engine_config : CudnnKind::engine;
      if (target == nullptr || target->kind != wanted || target->is_final) {
        return kBadParameter;
      }
      target->graph = from->graph;
      target->is_final = true;
    }
    return 0;
  }
  if (is(CudnnKind::engine, A::engine_numerical_notes, CudnnElement::numerical_note)) {
    *count = options_.is_deterministic ? 0 : 1;
    if (room > 0 && *count > 0) {
      *static_cast<cuda::CudnnNote*>(elements) = cuda::CudnnNote::nondeterministic;
    }
    return 0;
  }
  if ((is(CudnnKind::engine_config, A::config_workspace, CudnnElement::int64) ||
       is(CudnnKind::execution_plan, A::plan_workspace, CudnnElement::int64)) &&
      room == 1) {
    *count = 1;
    *static_cast<int64_t*>(elements) = workspace_of(*from->graph);
    return 0;
  }
  return kBadParameter;
}

bool FakeCudnn::are_there(const Graph& graph, const std::map<int64_t, void*>& memory) const {
  const std::map<int64_t, FakeTensor> wanted = outside(graph);
  return wanted.size() == memory.size() &&
         std::all_of(wanted.begin(), wanted.end(), [&](const auto& each) {
           const auto& [id, tensor] = each;
           const auto found = memory.find(id);
           return found != memory.end() && found->second != nullptr &&
                  reinterpret_cast<uintptr_t>(found->second) %
                          static_cast<uintptr_t>(tensor.alignment) ==
                      0 &&
                  gpu_->holds(found->second, tensor.bytes()) != tensor.is_by_value;
         });
}

int FakeCudnn::execute(CudnnHandle handle, CudnnDescriptor plan, CudnnDescriptor pack) {
  using A = CudnnAttribute;
  const std::lock_guard lock(mutex_);
  if (const int status = enter("execute"); status != 0) {
    return status;
  }
  const Descriptor* const what = find_final(plan, CudnnKind::execution_plan);
  const Descriptor* const with = find_final(pack, CudnnKind::variant_pack);
  const auto stream = handles_.find(handle);
  if (what == nullptr || with == nullptr || stream == handles_.end()) {
    return kBadParameter;
  }
  std::map<int64_t, void*> memory;
  const Attribute& ids = with->attributes.at(A::pack_unique_ids);
  const Attribute& pointers = with->attributes.at(A::pack_pointers);
  for (size_t i = 0; i < static_cast<size_t>(ids.count); ++i) {
    int64_t id = 0;
    std::memcpy(&id, ids.bytes.data() + i * sizeof(id), sizeof(id));
    std::memcpy(&memory[id], pointers.bytes.data() + i * sizeof(void*), sizeof(void*));
  }
  auto* const workspace = value<void*>(*with, A::pack_workspace);
  if (!are_there(*what->graph, memory) || reinterpret_cast<uintptr_t>(workspace) % 256 != 0 ||
      !gpu_->holds(workspace, static_cast<size_t>(workspace_of(*what->graph)))) {
    return kBadParameter;
  }
  // Numbers of the host are read before the call returns.
  auto numbers = std::make_shared<std::map<int64_t, float>>();
  for (const auto& [id, tensor] : outside(*what->graph)) {
    if (tensor.is_by_value) {
      std::memcpy(&(*numbers)[id], memory[id], sizeof(float));
      memory[id] = &(*numbers)[id];
    }
  }
  const bool is_posted =
      gpu_->post(stream->second, [this, graph = what->graph, memory, numbers, workspace,
                                  run = runs_++] { compute(*graph, memory, workspace, run); });
  return is_posted ? 0 : kBadParameter;
}

void FakeCudnn::compute(const Graph& graph, const std::map<int64_t, void*>& memory, void* workspace,
                        int64_t run) const {
  std::memset(workspace, 0xff, static_cast<size_t>(workspace_of(graph)));
  FakeGraphRun work(memory);
  for (const FakeOperation& each : graph) {
    work.run(each);
  }
  const FakeTensor& last = graph.back().output;
  auto* const bytes = static_cast<std::byte*>(memory.at(last.id));
  if (varies_) {
    bytes[0] ^= std::byte{1} << (run % 2);
  }
  if (damages_) {
    const int64_t row = last.dimensions[2] - 1;
    std::memset(bytes + row * last.strides[2] * 2, 0, static_cast<size_t>(last.dimensions[3]) * 2);
  }
  std::this_thread::sleep_for(delay_);
}

std::string FakeCudnn::describe(int status) {
  return status == kBadParameter ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_EXECUTION_FAILED";
}

}  // namespace headrace::device::testing
