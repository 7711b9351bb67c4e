#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/io.h"
#include "device/device.h"

namespace headrace::engine {

/// Rates of the same bytes on both ways from nvme to the device, per second.
struct PathRates {
  double direct = 0;
  double through_host = 0;  ///< of the slower part of the way: they overlap in a run
};

/// "6.20 GB/s, through host memory 6.10 GB/s".
std::string describe(const PathRates& rates);

/// The memory that a trial may use meanwhile, multiples of device::kDirectAlignment; the same
/// number of bytes of each is written, and zero afterwards.
struct TrialMemory {
  std::span<std::byte> device;
  std::span<std::byte> host;
};

/// Writes a file into the folder, reads it into the device by `reader` and through the host, a few
/// times in turn, and removes it. IoError where it cannot be read directly, or comes with other
/// bytes than were written.
PathRates try_direct_reads(device::Device& device, device::DirectReader& reader, aio::IoEngine& io,
                           const std::string& folder, const TrialMemory& memory);

/// How a run reads what goes from nvme to the device.
struct DirectPath {
  std::unique_ptr<device::DirectReader> reader;  ///< null: through host memory
  /// Of the rate of reads into the host, what direct reads reach; at most 1.
  double share = 0;
  std::string description;  ///< which way is used, and why
};

/// Settings of a run that direct reads depend on.
struct DirectRequest {
  bool verifies_reads = true;
  bool has_limits = false;  ///< of drive or link
  /// Taken for the share instead of what the trial measures; 0: none.
  double assumed_share = 0;
};

/// Direct reads where they are proven: cuFile has no other way, a file in each folder comes with
/// the right bytes, and no slower than through the host. Never throws for want of them.
DirectPath find_direct_path(device::Device& device, aio::IoEngine& io,
                            const std::vector<std::string>& folders, const TrialMemory& memory,
                            const DirectRequest& request);

}  // namespace headrace::engine
