#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/cuda_api.h"

namespace headrace::device::testing {

/// A GPU made of host memory and threads behind the calls of CUDA that the backend makes. Streams
/// are real asynchronous queues; copies of pageable memory wait as CUDA's do; kernels are the CPU
/// instantiation of the GPU's, block by block; products are computed column-major from the very
/// arguments. A stream in capture records and runs nothing; a graph runs what was recorded. What
/// CUDA would refuse, or could not survive, is refused: addresses that are not the
/// device's, use after free, wrong leading dimensions, launches beyond the limits, calls for
/// another device than the thread's. Thread-safe.
class FakeCuda : public cuda::CudaApi {
 public:
  struct Options {
    int devices = 1;
    int64_t memory = int64_t{1} << 30;
    int64_t shared_bytes = int64_t{227} << 10;
    int compute_capability = 90;
    bool can_register = true;       ///< else cudaHostRegister is refused
    bool has_algorithms = true;     ///< of cuBLASLt
    bool has_bias = true;           ///< cuBLASLt has algorithms that add one
    bool can_capture = true;        ///< the driver knows graphs
    int64_t node_bytes = 10 << 10;  ///< device memory of a node of an executable graph
    /// Device memory can only be touched while the device works: a CPU that does it all the same
    /// ends the process, most of the time. Slow.
    bool protects_memory = false;
  };

  FakeCuda();
  explicit FakeCuda(const Options& options);
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;
  ~FakeCuda() override;

  /// The call named `call` ("copy") fails with `code` once, after `skipped` further ones.
  void fail_call(const std::string& call, int64_t skipped, int code);
  /// From the end of the `skipped`-th next launch on every call fails with `code`, as after an
  /// illegal access.
  void fail_on_device(int64_t skipped, int code);
  int64_t calls(const std::string& call) const;
  /// From now on so much time lies between any two timed events.
  void pretend_elapsed(float milliseconds) { pretended_ms_ = milliseconds; }
  /// Every kernel takes so much longer from now on; to be called while none runs.
  void slow_kernels(std::chrono::milliseconds delay) { delay_ = delay; }
  /// Copies that waited for the host because a side was pageable.
  int64_t pageable_copies() const { return pageable_copies_; }
  /// Allocations, streams, events, graphs and registrations that are not given back.
  int64_t live_objects() const;
  /// What another device on the bus does by DMA; false where the target is not the GPU's memory.
  bool write_as_peer(void* target, const void* source, size_t size);
  /// Whether all of it is memory of the GPU.
  bool holds(const void* address, size_t size) const { return is_on_device(address, size); }
  /// What another library posts to a stream of this GPU; false where there is no such stream.
  bool post(cuda::StreamHandle stream, std::function<void()> work);

  cuda::Status device_count(int* count) override;
  cuda::Status device_facts(int device, cuda::GpuFacts* facts) override;
  cuda::Status set_device(int device) override;
  cuda::Status memory_info(size_t* available, size_t* total) override;
  cuda::Status allocate(void** pointer, size_t size) override;
  cuda::Status release(void* pointer) override;
  cuda::Status host_register(void* pointer, size_t size) override;
  cuda::Status host_unregister(void* pointer) override;
  cuda::Status stream_create(cuda::StreamHandle* stream) override;
  cuda::Status stream_destroy(cuda::StreamHandle stream) override;
  cuda::Status stream_synchronize(cuda::StreamHandle stream) override;
  cuda::Status stream_wait_event(cuda::StreamHandle stream, cuda::EventHandle event) override;
  cuda::Status event_create(cuda::EventHandle* event) override;
  cuda::Status timed_event_create(cuda::EventHandle* event) override;
  cuda::Status event_destroy(cuda::EventHandle event) override;
  cuda::Status event_record(cuda::EventHandle event, cuda::StreamHandle stream) override;
  cuda::Status event_query(cuda::EventHandle event) override;
  cuda::Status event_synchronize(cuda::EventHandle event) override;
  cuda::Status event_elapsed(float* milliseconds, cuda::EventHandle begin,
                             cuda::EventHandle end) override;
  cuda::Status stream_begin_capture(cuda::StreamHandle stream) override;
  cuda::Status stream_end_capture(cuda::StreamHandle stream, cuda::GraphHandle* graph) override;
  cuda::Status graph_instantiate(cuda::GraphExecHandle* executable,
                                 cuda::GraphHandle graph) override;
  cuda::Status graph_destroy(cuda::GraphHandle graph) override;
  cuda::Status graph_launch(cuda::GraphExecHandle executable, cuda::StreamHandle stream) override;
  cuda::Status graph_executable_destroy(cuda::GraphExecHandle executable) override;
  cuda::Status copy(void* target, const void* source, size_t size,
                    cuda::StreamHandle stream) override;
  cuda::Status fill(void* target, int byte, size_t size, cuda::StreamHandle stream) override;
  cuda::Status launch(const cuda::Launch& launch, const void* arguments,
                      cuda::StreamHandle stream) override;
  cuda::Status lt_choose(const cuda::LtProduct& product, cuda::LtAlgorithm* algorithm) override;
  cuda::Status lt_multiply(const cuda::LtProduct& product, const cuda::LtAlgorithm& algorithm,
                           float alpha, float beta, const cuda::LtOperands& operands,
                           cuda::StreamHandle stream) override;
  const char* describe(cuda::Status status) override;

 private:
  using Nodes = std::vector<std::function<void()>>;
  struct Stream;
  struct Event;
  struct Capture;
  struct Executable;
  struct Failure {
    int64_t skipped;
    int code;
  };
  enum class Place : uint8_t { device, registered, pageable, nowhere };

  /// Counts the call; its error, if it was told to fail or the device has failed.
  cuda::Status enter(const char* call);
  /// The same of a call that a thread must not make while it captures.
  cuda::Status enter_outside_capture(const char* call);
  /// Posts the work, or records it where the stream is in capture.
  cuda::Status submit(Stream& stream, std::function<void()> work);
  /// The error of what cannot be captured, if the stream is in capture, which it ends.
  cuda::Status refuse_in_capture(Stream& stream, int code);
  bool is_in_capture(const Stream& stream) const;
  bool fails_now();
  cuda::Status create_event(cuda::EventHandle* event, const char* call, bool is_timed);
  Stream* find(cuda::StreamHandle stream) const;
  std::shared_ptr<Event> find(cuda::EventHandle event) const;
  Place place_of(const void* address, size_t size) const;
  bool is_on_device(const void* address, size_t size) const;
  bool are_there(const cuda::LtProduct& product, const cuda::LtOperands& operands) const;
  /// Calls work() with the device's memory accessible.
  template <class Work>
  void use_memory(const Work& work);
  void protect(int change);
  cuda::Status post_kernel(const cuda::Launch& launch, const void* arguments, Stream& stream);

  Options options_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> calls_;
  std::map<std::string, Failure> failures_;
  std::map<const std::byte*, size_t> allocations_;
  std::map<const std::byte*, size_t> registrations_;
  std::map<cuda::StreamHandle, std::unique_ptr<Stream>> streams_;
  std::map<cuda::EventHandle, std::shared_ptr<Event>> events_;
  std::map<cuda::GraphHandle, std::unique_ptr<Nodes>> graphs_;
  std::map<cuda::GraphExecHandle, std::unique_ptr<Executable>> executables_;
  std::vector<cuda::LtProduct> products_;
  int64_t used_ = 0;
  std::optional<Failure> device_failure_;
  int users_ = 0;  ///< of device memory, where it is protected
  std::atomic<int> sticky_ = 0;
  std::optional<float> pretended_ms_;
  std::chrono::milliseconds delay_{0};
  std::atomic<int64_t> pageable_copies_ = 0;
};

/// Runs all blocks of a launch on the calling thread; false where there is no such kernel.
bool run_kernel(const cuda::Launch& launch, const void* arguments);
/// Bytes of the argument structure of a launch, 0 where there is no such kernel.
size_t argument_bytes(const cuda::Launch& launch);
/// The column-major product, on the calling thread.
void multiply(const cuda::LtProduct& product, float alpha, float beta,
              const cuda::LtOperands& operands);

}  // namespace headrace::device::testing
