#pragma once

#include <memory>

#include "aio/io.h"
#include "device/limited_stream.h"
#include "support/temporary_folder.h"
#include "tiers/arena.h"
#include "tiers/host_memory.h"
#include "tiers/tiered_store.h"

namespace headrace::engine::test {

/// The three tiers with small arenas, as Engine builds them; lanes of a given rate where it is not
/// 0, in bytes per second.
struct Tiers {
  Tiers(Bytes device_size, Bytes host_size, aio::BackendKind backend,
        const aio::IoLimits& io_limits = {}, double link_limit = 0)
      : device(device::make_cpu_device()),
        host_memory(host_size, false),
        host_arena(Tier::host, host_memory.data(), host_size) {
    if (device_size > Bytes(0)) {
      device_memory = device->allocate(device_size);
      device_arena =
          std::make_unique<tiers::Arena>(Tier::device, device_memory->data(), device_size);
    }
    aio::IoEngineOptions io_options;
    io_options.backend = backend;
    io_options.limits = io_limits;
    io = aio::IoEngine::create(io_options);
    tiers::ExtentStoreOptions options;
    options.paths = {folder.path()};
    options.disk_budget = kMiB * 256;
    options.growth_step = kMiB * 4;
    extents = tiers::ExtentStore::create(options, io);
    compute = device->create_stream("compute");
    down = copy_stream("down", link_limit);
    up = copy_stream("up", link_limit);
    tiers::TieredStore::Parts parts;
    parts.device_arena = device_arena.get();
    parts.host_arena = &host_arena;
    parts.extents = extents;
    parts.host_to_device = down.get();
    parts.device_to_host = up.get();
    store = std::make_unique<tiers::TieredStore>(parts);
  }

  std::unique_ptr<device::Stream> copy_stream(const char* name, double limit) {
    auto stream = device->create_stream(name);
    return limit > 0 ? device::make_limited_stream(std::move(stream), limit) : std::move(stream);
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
