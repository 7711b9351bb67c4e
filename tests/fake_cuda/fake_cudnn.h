#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_cudnn_graph.h"

namespace headrace::device::testing {

/// cuDNN's backend API on the fake GPU. Every attribute is checked as cuDNN would: of which
/// descriptor it is, type and number of its elements, what must be set before a descriptor is
/// final, that shapes go together, that each tensor in memory has an aligned address of the GPU's
/// and each number one of the host's. A plan computes what its graph means, operation by operation
/// (FakeGraphRun), and writes over all of the workspace that it has asked for. Thread-safe.
class FakeCudnn : public cuda::CudnnApi {
 public:
  struct Options {
    size_t version = 91900;
    bool is_deterministic = true;  ///< as its engine says
    int64_t longest = 1024;        ///< sequence that it has an engine for
    /// Bytes of workspace for each score of a graph that writes gradients, and at least.
    int64_t workspace_of_score = 2;
    int64_t least_workspace = 256;
  };

  explicit FakeCudnn(std::shared_ptr<FakeCuda> gpu);
  FakeCudnn(std::shared_ptr<FakeCuda> gpu, const Options& options);

  /// The call named `call` ("execute") fails with CUDNN_STATUS_EXECUTION_FAILED once, after
  /// `skipped` further ones.
  void fail_call(const std::string& call, int64_t skipped);
  /// Every run of a plan changes its last output: by one bit, another one each time.
  void vary_results() { varies_ = true; }
  /// Every run of a plan leaves one head's row of its last output 0.
  void damage_results() { damages_ = true; }
  /// Every run of a plan takes this much longer.
  void slow_down(std::chrono::milliseconds delay) { delay_ = delay; }

  int64_t calls(const std::string& call) const;
  /// Handles and descriptors that are not given back.
  int64_t live_objects() const;

  size_t version() override { return options_.version; }
  int create(cuda::CudnnHandle* handle) override;
  int destroy(cuda::CudnnHandle handle) override;
  int set_stream(cuda::CudnnHandle handle, cuda::StreamHandle stream) override;
  int create_descriptor(cuda::CudnnKind kind, cuda::CudnnDescriptor* descriptor) override;
  int destroy_descriptor(cuda::CudnnDescriptor descriptor) override;
  int set_attribute(cuda::CudnnDescriptor descriptor, cuda::CudnnAttribute attribute,
                    cuda::CudnnElement element, int64_t count, const void* elements) override;
  int finalize(cuda::CudnnDescriptor descriptor) override;
  int get_attribute(cuda::CudnnDescriptor descriptor, cuda::CudnnAttribute attribute,
                    cuda::CudnnElement element, int64_t room, int64_t* count,
                    void* elements) override;
  int execute(cuda::CudnnHandle handle, cuda::CudnnDescriptor plan,
              cuda::CudnnDescriptor pack) override;
  std::string describe(int status) override;

 private:
  using Graph = std::vector<FakeOperation>;
  struct Attribute {
    int64_t count = 0;
    std::vector<std::byte> bytes;
  };
  struct Descriptor {
    cuda::CudnnKind kind = cuda::CudnnKind::tensor;
    bool is_final = false;
    std::map<cuda::CudnnAttribute, Attribute> attributes;
    std::shared_ptr<const Graph> graph;  ///< of graphs and what is made of them
  };

  int enter(const char* call);
  Descriptor* find(cuda::CudnnDescriptor descriptor);
  Descriptor* find_final(cuda::CudnnDescriptor descriptor, cuda::CudnnKind kind);
  template <class T>
  static T value(const Descriptor& of, cuda::CudnnAttribute attribute, T otherwise = {});
  /// The descriptor that an attribute refers to; null where it is not set or not final.
  Descriptor* referred(const Descriptor& of, cuda::CudnnAttribute attribute, cuda::CudnnKind kind);
  bool check_tensor(const Descriptor& descriptor) const;
  std::optional<FakeTensor> tensor(const Descriptor& of, cuda::CudnnAttribute attribute);
  std::optional<FakeOperation> operation(const Descriptor& descriptor);
  bool finish(Descriptor& descriptor);
  bool finish_graph(Descriptor& descriptor);
  bool has_engine(const Graph& graph) const;
  int64_t workspace_of(const Graph& graph) const;
  bool are_there(const Graph& graph, const std::map<int64_t, void*>& memory) const;
  void compute(const Graph& graph, const std::map<int64_t, void*>& memory, void* workspace,
               int64_t run) const;

  std::shared_ptr<FakeCuda> gpu_;
  Options options_;
  bool varies_ = false;
  bool damages_ = false;
  std::chrono::milliseconds delay_{0};
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> calls_;
  std::map<std::string, int64_t> failures_;
  std::map<cuda::CudnnHandle, cuda::StreamHandle> handles_;
  std::map<cuda::CudnnDescriptor, std::unique_ptr<Descriptor>> descriptors_;
  uintptr_t next_ = 64;
  int64_t runs_ = 0;
};

}  // namespace headrace::device::testing
