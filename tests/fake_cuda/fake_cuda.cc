#include "tests/fake_cuda/fake_cuda.h"

#include <sys/mman.h>

#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "tests/fake_cuda/fake_stream.h"

namespace headrace::device::testing {

using cuda::EventHandle;
using cuda::Launch;
using cuda::Status;
using cuda::StreamHandle;

namespace {

constexpr int kInvalidConfiguration = 9;
constexpr int kInvalidDevice = 101;

thread_local int current_device = 0;

bool contains(const std::map<const std::byte*, size_t>& ranges, const void* address, size_t size) {
  const auto* const first = static_cast<const std::byte*>(address);
  auto range = ranges.upper_bound(first);
  if (range == ranges.begin()) {
    return false;
  }
  --range;
  const auto offset = static_cast<size_t>(first - range->first);
  return size <= range->second && offset <= range->second - size;
}

/// Whether any byte of [address, address + size) lies in one of the ranges.
bool touches(const std::map<const std::byte*, size_t>& ranges, const void* address, size_t size) {
  const auto* const first = static_cast<const std::byte*>(address);
  for (const auto& [begin, length] : ranges) {
    if (first < begin + length && begin < first + size) {
      return true;
    }
  }
  return false;
}

}  // namespace

FakeCuda::FakeCuda() : FakeCuda(Options()) {}

FakeCuda::FakeCuda(const Options& options) : options_(options) {
  streams_.emplace(nullptr, std::make_unique<Stream>(-1));
}

FakeCuda::~FakeCuda() {
  streams_.clear();  // drains
  for (const auto& [address, size] : allocations_) {
    ::munmap(const_cast<std::byte*>(address), size);
  }
}

void FakeCuda::fail_call(const std::string& call, int64_t skipped, int code) {
  const std::lock_guard lock(mutex_);
  failures_[call] = {skipped, code};
}

void FakeCuda::fail_on_device(int64_t skipped, int code) {
  const std::lock_guard lock(mutex_);
  device_failure_ = Failure{skipped, code};
}

int64_t FakeCuda::calls(const std::string& call) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(call);
  return found != calls_.end() ? found->second : 0;
}

int64_t FakeCuda::live_objects() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(allocations_.size() + registrations_.size() + events_.size() +
                              streams_.size() + graphs_.size() + executables_.size()) -
         1;  // the default stream
}

bool FakeCuda::write_as_peer(void* target, const void* source, size_t size) {
  if (!is_on_device(target, size)) {
    return false;
  }
  use_memory([=] { std::memcpy(target, source, size); });
  return true;
}

bool FakeCuda::post(StreamHandle stream, std::function<void()> work) {
  Stream* const found = find(stream);
  if (found == nullptr) {
    return false;
  }
  found->worker.post([this, work = std::move(work)] {
    if (sticky_ == 0) {
      use_memory(work);
    }
  });
  return true;
}

Status FakeCuda::enter(const char* call) {
  const std::lock_guard lock(mutex_);
  ++calls_[call];
  const auto failure = failures_.find(call);
  if (failure != failures_.end() && failure->second.skipped-- == 0) {
    const int code = failure->second.code;
    failures_.erase(failure);
    return runtime(code);
  }
  return runtime(sticky_);
}

/// Of the users of device memory; the first one opens it, the last one closes it.
void FakeCuda::protect(int change) {
  if (!options_.protects_memory) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const int before = std::exchange(users_, users_ + change);
  if (before != 0 && users_ != 0) {
    return;
  }
  const int access = users_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  for (const auto& [address, size] : allocations_) {
    HR_CHECK(::mprotect(const_cast<std::byte*>(address), size, access) == 0,
             "the fake GPU's memory cannot be protected");
  }
}

FakeCuda::Stream* FakeCuda::find(StreamHandle stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  const bool is_usable =
      found != streams_.end() && (stream == nullptr || found->second->device == current_device);
  return is_usable ? found->second.get() : nullptr;
}

FakeCuda::Place FakeCuda::place_of(const void* address, size_t size) const {
  const std::lock_guard lock(mutex_);
  if (contains(allocations_, address, size)) {
    return Place::device;
  }
  if (touches(allocations_, address, size)) {
    return Place::nowhere;
  }
  return contains(registrations_, address, size) ? Place::registered : Place::pageable;
}

bool FakeCuda::is_on_device(const void* address, size_t size) const {
  return place_of(address, size) == Place::device;
}

Status FakeCuda::device_count(int* count) {
  *count = options_.devices;
  return enter("device_count");
}

Status FakeCuda::device_facts(int device, cuda::GpuFacts* facts) {
  if (device < 0 || device >= options_.devices) {
    return runtime(kInvalidDevice);
  }
  *facts = {};
  std::strncpy(facts->name, "Fake GPU", sizeof(facts->name) - 1);
  std::strncpy(facts->pci_address, "0000:0f:00.0", sizeof(facts->pci_address) - 1);
  facts->major = options_.compute_capability / 10;
  facts->minor = options_.compute_capability % 10;
  facts->shared_bytes = options_.shared_bytes;
  facts->memory = options_.memory;
  facts->driver_version = 13000;
  facts->runtime_version = 13000;
  return enter("device_facts");
}

Status FakeCuda::set_device(int device) {
  if (device < 0 || device >= options_.devices) {
    return runtime(kInvalidDevice);
  }
  current_device = device;
  return runtime(0);
}

Status FakeCuda::memory_info(size_t* available, size_t* total) {
  {
    const std::lock_guard lock(mutex_);
    *available = static_cast<size_t>(options_.memory - used_);
    *total = static_cast<size_t>(options_.memory);
  }
  return enter("memory_info");
}

Status FakeCuda::allocate(void** pointer, size_t size) {
  if (const Status failed = enter_outside_capture("allocate"); !failed.is_ok()) {
    return failed;
  }
  const std::lock_guard lock(mutex_);
  if (used_ + static_cast<int64_t>(size) > options_.memory) {
    return runtime(cuda::kOutOfMemory);
  }
  void* const mapped =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HR_CHECK(mapped != MAP_FAILED, "the fake GPU's {} bytes cannot be mapped", size);
  std::memset(mapped, 0xa5, size);  // CUDA promises nothing
  if (options_.protects_memory && users_ == 0) {
    HR_CHECK(::mprotect(mapped, size, PROT_NONE) == 0, "the fake GPU cannot protect its memory");
  }
  allocations_.emplace(static_cast<std::byte*>(mapped), size);
  used_ += static_cast<int64_t>(size);
  *pointer = mapped;
  return runtime(0);
}

/// Waits for the device, as cudaFree does.
Status FakeCuda::release(void* pointer) {
  const Status entered = enter_outside_capture("release");
  if (entered.code == kCaptureUnsupported) {
    return entered;
  }
  std::vector<Stream*> streams;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, stream] : streams_) {
      streams.push_back(stream.get());
    }
  }
  for (Stream* const stream : streams) {
    stream->worker.drain();
  }
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<std::byte*>(pointer));
  if (found == allocations_.end()) {
    return runtime(kInvalidValue);
  }
  ::munmap(pointer, found->second);
  used_ -= static_cast<int64_t>(found->second);
  allocations_.erase(found);
  return entered;
}

Status FakeCuda::host_register(void* pointer, size_t size) {
  if (const Status failed = enter_outside_capture("host_register"); !failed.is_ok()) {
    return failed;
  }
  if (!options_.can_register) {
    return runtime(kNotSupported);
  }
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const std::byte*>(pointer);
  if (size == 0 || touches(registrations_, begin, size) || touches(allocations_, begin, size)) {
    return runtime(kInvalidValue);
  }
  registrations_.emplace(begin, size);
  return runtime(0);
}

Status FakeCuda::host_unregister(void* pointer) {
  const Status entered = enter("host_unregister");
  const std::lock_guard lock(mutex_);
  return registrations_.erase(static_cast<std::byte*>(pointer)) == 1 ? entered
                                                                     : runtime(kInvalidValue);
}

Status FakeCuda::stream_create(StreamHandle* stream) {
  if (const Status failed = enter("stream_create"); !failed.is_ok()) {
    return failed;
  }
  auto made = std::make_unique<Stream>(current_device);
  *stream = reinterpret_cast<StreamHandle>(made.get());
  const std::lock_guard lock(mutex_);
  streams_.emplace(*stream, std::move(made));
  return runtime(0);
}

Status FakeCuda::stream_destroy(StreamHandle stream) {
  const Status entered = enter("stream_destroy");
  std::unique_ptr<Stream> ended;
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    if (stream == nullptr || found == streams_.end()) {
      return runtime(kInvalidHandle);
    }
    ended = std::move(found->second);
    streams_.erase(found);
  }
  return entered;
}

Status FakeCuda::stream_synchronize(StreamHandle stream) {
  const Status entered = enter("stream_synchronize");
  Stream* const found = find(stream);
  if (found == nullptr) {
    return runtime(kInvalidHandle);
  }
  if (const Status refused = refuse_in_capture(*found, kCaptureUnsupported); !refused.is_ok()) {
    return refused;
  }
  found->worker.drain();
  return entered.is_ok() ? runtime(sticky_) : entered;
}

Status FakeCuda::copy(void* target, const void* source, size_t size, StreamHandle stream) {
  if (const Status failed = enter("copy"); !failed.is_ok()) {
    return failed;
  }
  Stream* const found = find(stream);
  if (found == nullptr) {
    return runtime(kInvalidHandle);
  }
  const Place to = place_of(target, size);
  const Place from = place_of(source, size);
  if (to == Place::nowhere || from == Place::nowhere) {
    return runtime(kInvalidValue);
  }
  if (to == Place::pageable || from == Place::pageable) {
    if (const Status refused = refuse_in_capture(*found, kCaptureUnsupported); !refused.is_ok()) {
      return refused;
    }
    ++pageable_copies_;
    found->worker.drain();
    use_memory([=] { std::memcpy(target, source, size); });
    return runtime(0);
  }
  return submit(*found, [=, this] { use_memory([=] { std::memcpy(target, source, size); }); });
}

Status FakeCuda::fill(void* target, int byte, size_t size, StreamHandle stream) {
  if (const Status failed = enter("fill"); !failed.is_ok()) {
    return failed;
  }
  Stream* const found = find(stream);
  if (found == nullptr || !is_on_device(target, size)) {
    return runtime(found == nullptr ? kInvalidHandle : kInvalidValue);
  }
  return submit(*found, [=, this] { use_memory([=] { std::memset(target, byte, size); }); });
}

Status FakeCuda::launch(const Launch& launch, const void* arguments, StreamHandle stream) {
  if (const Status failed = enter("launch"); !failed.is_ok()) {
    return failed;
  }
  Stream* const found = find(stream);
  if (found == nullptr) {
    return runtime(kInvalidHandle);
  }
  const uint64_t blocks = uint64_t{launch.grid_x} * launch.grid_y;
  if (blocks == 0 || blocks > 0x7fffffffU || launch.threads == 0 ||
      launch.threads > cuda::kMostThreads || launch.threads % 32 != 0 ||
      launch.shared_bytes > options_.shared_bytes) {
    return runtime(kInvalidConfiguration);
  }
  return post_kernel(launch, arguments, *found);
}

Status FakeCuda::post_kernel(const Launch& launch, const void* arguments, Stream& stream) {
  const size_t size = argument_bytes(launch);
  if (size == 0) {
    return runtime(kInvalidValue);
  }
  const auto* const begin = static_cast<const std::byte*>(arguments);
  std::vector<std::byte> copied(begin, begin + size);
  return submit(stream, [this, launch, copied = std::move(copied)] {
    if (sticky_ == 0 && !fails_now()) {
      use_memory([&] { run_kernel(launch, copied.data()); });
      std::this_thread::sleep_for(delay_);
    }
  });
}

/// Whether the kernel that is about to run is the one that was told to break the device.
bool FakeCuda::fails_now() {
  const std::lock_guard lock(mutex_);
  if (device_failure_ && device_failure_->skipped-- == 0) {
    sticky_ = device_failure_->code;
  }
  return sticky_ != 0;
}

const char* FakeCuda::describe(Status status) {
  if (status.library == Status::Library::cublas_lt) {
    return status.code == cuda::kLtNoneFound ? "no algorithm" : "CUBLAS_STATUS_INVALID_VALUE";
  }
  switch (status.code) {
    case kInvalidValue:
      return "cudaErrorInvalidValue (invalid argument)";
    case cuda::kOutOfMemory:
      return "cudaErrorMemoryAllocation (out of memory)";
    case kInvalidHandle:
      return "cudaErrorInvalidResourceHandle (invalid resource handle)";
    case kNotSupported:
      return "cudaErrorNotSupported (operation not supported)";
    case kCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported (operation not permitted when stream is capturing)";
    case 700:
      return "cudaErrorIllegalAddress (an illegal memory access was encountered)";
    default:
      return "an error of the fake GPU";
  }
}

}  // namespace headrace::device::testing
