#pragma once

#include <memory>
#include <utility>

#include "aio/io.h"
#include "support/temporary_folder.h"
#include "tiers/arena.h"
#include "tiers/host_memory.h"
#include "tiers/tiered_store.h"

namespace headrace::engine::test {

inline std::shared_ptr<aio::IoEngine> io_engine(aio::BackendKind backend,
                                                const aio::IoLimits& limits = {}) {
  aio::IoEngineOptions options;
  options.backend = backend;
  options.limits = limits;
  return aio::IoEngine::create(options);
}

/// The three tiers with small arenas, as Engine builds them.
struct Tiers {
  Tiers(Bytes device_size, Bytes host_size, std::shared_ptr<aio::IoEngine> io_in)
      : device(device::make_cpu_device()),
        host_memory(host_size, false),
        host_arena(Tier::host, host_memory.data(), host_size),
        io(std::move(io_in)) {
    if (device_size > Bytes(0)) {
      device_memory = device->allocate(device_size);
      device_arena =
          std::make_unique<tiers::Arena>(Tier::device, device_memory->data(), device_size);
    }
    tiers::ExtentStoreOptions options;
    options.paths = {folder.path()};
    options.disk_budget = kMiB * 256;
    options.growth_step = kMiB * 4;
    extents = tiers::ExtentStore::create(options, io);
    compute = device->create_stream("compute");
    down = device->create_stream("down");
    up = device->create_stream("up");
    make_store();
  }

  /// A store without objects over the parts as they are now.
  void make_store() {
    store.reset();
    tiers::TieredStore::Parts parts;
    parts.device_arena = device_arena.get();
    parts.host_arena = &host_arena;
    parts.extents = extents;
    parts.host_to_device = down.get();
    parts.device_to_host = up.get();
    store = std::make_unique<tiers::TieredStore>(parts);
  }

  headrace::test::TemporaryFolder folder;
  std::unique_ptr<device::Device> device;
  tiers::HostMemory host_memory;
  tiers::Arena host_arena;
  std::unique_ptr<device::Memory> device_memory;
  std::unique_ptr<tiers::Arena> device_arena;
  std::shared_ptr<aio::IoEngine> io;
  std::shared_ptr<tiers::ExtentStore> extents;
  std::unique_ptr<device::Stream> compute;
  std::unique_ptr<device::Stream> down;
  std::unique_ptr<device::Stream> up;
  std::unique_ptr<tiers::TieredStore> store;
};

}  // namespace headrace::engine::test
