#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/units.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/cudnn_api.h"

/// cuDNN's backend descriptors and graphs of operations, as objects.
namespace headrace::device::cuda {

/// Throws CudaError if `status` is an error of the call named `what`.
void check_cudnn(CudnnApi& cudnn, int status, const std::string& what);

/// The element type of attributes that are given as T.
template <class T>
constexpr CudnnElement cudnn_element() {
  if constexpr (std::is_same_v<T, CudnnHandle>) {
    return CudnnElement::handle;
  } else if constexpr (std::is_same_v<T, CudnnData>) {
    return CudnnElement::data_type;
  } else if constexpr (std::is_same_v<T, bool>) {
    return CudnnElement::boolean;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return CudnnElement::int64;
  } else if constexpr (std::is_same_v<T, CudnnHeuristic>) {
    return CudnnElement::heuristic_mode;
  } else if constexpr (std::is_same_v<T, CudnnNote>) {
    return CudnnElement::numerical_note;
  } else if constexpr (std::is_same_v<T, CudnnPointwise>) {
    return CudnnElement::pointwise_mode;
  } else if constexpr (std::is_same_v<T, CudnnReduction>) {
    return CudnnElement::reduction_operator;
  } else {
    static_assert(std::is_same_v<T, char>);
    return CudnnElement::character;
  }
}

/// One descriptor of cuDNN, which ends with the last copy; attributes are set before finalize().
/// What fails throws CudaError.
class CudnnObject {
 public:
  CudnnObject(CudnnApi& cudnn, CudnnKind kind);

  template <class T>
  CudnnObject& set(CudnnAttribute attribute, std::span<const T> elements) {
    return set(attribute, cudnn_element<T>(), std::ssize(elements), elements.data());
  }
  template <class T>
  CudnnObject& set(CudnnAttribute attribute, T element) {
    return set(attribute, cudnn_element<T>(), 1, &element);
  }
  /// What is referred to lives on with this descriptor.
  CudnnObject& set(CudnnAttribute attribute, const std::vector<CudnnObject>& objects);
  CudnnObject& set(CudnnAttribute attribute, const CudnnObject& object) {
    return set(attribute, std::vector<CudnnObject>{object});
  }
  CudnnObject& set(CudnnAttribute attribute, CudnnElement element, int64_t count,
                   const void* elements);
  CudnnObject& finalize();

  int64_t number(CudnnAttribute attribute) const;
  /// How many elements there are; `elements` has room for so many.
  int64_t get(CudnnAttribute attribute, CudnnElement element, int64_t room, void* elements) const;

  CudnnDescriptor descriptor() const { return descriptor_.get(); }

 private:
  std::string name(const char* call, int attribute) const;

  CudnnApi* cudnn_;
  CudnnKind kind_;
  std::shared_ptr<void> descriptor_;
  std::vector<CudnnObject> kept_;
};

/// A tensor of a graph: four dimensions, batch, head, row, column.
using CudnnDimensions = std::array<int64_t, 4>;
using CudnnTensor = std::optional<CudnnObject>;

/// A graph of operations under construction; its sums and exponentials are fp32. Virtual tensors
/// exist within the kernel alone.
class CudnnGraph {
 public:
  explicit CudnnGraph(CudnnApi& cudnn) : cudnn_(cudnn) {}

  /// In memory, 16-byte aligned, by its id.
  CudnnTensor tensor(int64_t id, CudnnData type, const CudnnDimensions& dimensions,
                     const CudnnDimensions& strides);
  /// A fp32 number on the host, by its id.
  CudnnTensor number(int64_t id);
  CudnnTensor virtual_tensor(CudnnData type, const CudnnDimensions& dimensions);
  CudnnTensor virtual_tensor(CudnnData type, const CudnnDimensions& dimensions,
                             const CudnnDimensions& strides);

  /// y = mode(x, b, t); operands that the mode has not are empty.
  void pointwise(CudnnPointwise mode, const CudnnTensor& x, const CudnnTensor& b,
                 const CudnnTensor& y, const CudnnTensor& t = std::nullopt,
                 CudnnData precision = CudnnData::f32);
  /// y = the position of each element along the axis, in the shape of x.
  void index(const CudnnTensor& x, int64_t axis, const CudnnTensor& y);
  /// c = a b; heads of b count for several of a, where it has fewer.
  void matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c);
  /// Over the dimensions in which y is shorter.
  void reduce(CudnnReduction how, const CudnnTensor& x, const CudnnTensor& y);
  void reshape(const CudnnTensor& x, const CudnnTensor& y);

  const std::vector<CudnnObject>& operations() const { return operations_; }

 private:
  CudnnTensor make_tensor(int64_t id, CudnnData type, const CudnnDimensions& dimensions,
                          const CudnnDimensions& strides, bool is_virtual, bool is_by_value);

  static constexpr int64_t kFirstVirtual = 1000;  // ids

  CudnnApi& cudnn_;
  int64_t next_ = kFirstVirtual;
  std::vector<CudnnObject> operations_;
};

/// What a graph is planned for: a GPU's handle, or the properties of a GPU that is not there.
struct CudnnTarget {
  CudnnHandle handle = nullptr;
  const CudnnObject* device = nullptr;
};

/// A way in which cuDNN can run a graph.
struct CudnnConfig {
  CudnnObject config;
  CudnnObject graph;  ///< that it is of
  Bytes workspace;
  bool is_deterministic = false;  ///< as its engine says
};

/// cuDNN's ways for a graph, best first; none where it has none.
std::vector<CudnnConfig> configs_of(CudnnApi& cudnn, const CudnnGraph& graph,
                                    const CudnnTarget& target);

}  // namespace headrace::device::cuda
