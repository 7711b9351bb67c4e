#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "aio/backend.h"
#include "aio/simulated_disk.h"

namespace headrace::aio {

/// Carries parts to a simulated disk, which it shares; transfers happen inside reap(), so with
/// neither delays nor several clients a seed decides everything.
class SimulatedBackend : public Backend {
 public:
  explicit SimulatedBackend(std::shared_ptr<SimulatedDisk> disk) : disk_(std::move(disk)) {}

  int open(const std::string& path, bool create, bool direct) override;
  int allocate(int handle, int64_t size) override { return disk_->allocate(handle, size); }
  int set_size(int handle, int64_t size) override { return disk_->set_size(handle, size); }
  int sync(int handle) override { return disk_->sync(handle); }
  int close(int handle) override { return disk_->close(handle); }

  void register_memory(std::span<std::byte> memory) override;
  void submit(std::span<const PartRequest> parts) override;
  size_t reap(std::span<PartCompletion> ready) override;
  void wake() override { disk_->signal(woken_); }
  std::string name() const override { return "simulated disk"; }
  std::string features() const override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    PartRequest part;
    Clock::time_point due;
  };

  /// Index of the part to end next among those due at `now`; -1 when there is none.
  int64_t pick(Clock::time_point now);

  std::shared_ptr<SimulatedDisk> disk_;
  std::vector<Waiting> waiting_;
  bool woken_ = false;  ///< belongs to the disk's lock
  std::atomic<bool> has_buffers_{false};
};

/// An engine over a simulated disk; the disk outlives it and may be opened again.
std::unique_ptr<IoEngine> create_simulated_engine(std::shared_ptr<SimulatedDisk> disk,
                                                  const IoEngineOptions& options);

}  // namespace headrace::aio
