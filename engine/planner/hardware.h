#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aio/profile_catalog.h"
#include "base/dtype.h"
#include "base/units.h"
#include "engine/config/settings.h"
#include "engine/engine.h"

namespace headrace::engine {

/// A rate and where it comes from.
struct Rate {
  double per_second = 0;  ///< bytes, or floating point operations
  std::string source;     ///< "assumed", "measured 2026-11-30", "0.7 of 6.4 GB/s (...)", "given"
};

/// What a step is planned with. A value.
struct Hardware {
  Rate compute;        ///< floating point operations of the network in the training dtype
  Rate compute_fp8;    ///< of its products in fp8, where it has them; 0: the same
  Rate cpu_memory;     ///< bytes that optimizer and accumulation move on the host
  Rate device_memory;  ///< bytes that optimizer and accumulation move on the device
  Rate host_to_device;
  Rate device_to_host;
  Rate nvme_read;        ///< all drives together, while nothing is written
  Rate nvme_write;       ///< the same, while nothing is read
  Rate nvme_both;        ///< of both directions while both go on; 0: neither slows the other
  bool has_gpu = false;  ///< compute, device memory and link are those of a GPU
  std::optional<Bytes> device_size;  ///< of a GPU that was named
  int drives = 0;                    ///< that were named; 0: what the nvme paths lie on
  Bytes drive_size;                  ///< of the drives together; 0: not known
  Bytes endurance;                   ///< bytes written that the drives are rated for; 0: not known
  std::vector<std::string> notes;    ///< what to know about these figures
};

/// Parts of a data sheet's figures that a step is taken to reach. Drives: reads and writes go on at
/// once, and a drive is between one limit for both (0.5) and a limit for each (1).
inline constexpr double kComputeShare = 0.5;
inline constexpr double kDeviceMemoryShare = 0.8;
inline constexpr double kHostMemoryShare = 0.7;
inline constexpr double kLinkShare = 0.8;
inline constexpr double kDriveShare = 0.7;

/// What is known of this machine: what `headrace probe` has stored, else what is assumed. With
/// nvme paths whose storage has a profile, its rates. `gpu`: the name of the GPU that computes, or
/// empty. Probes measure the CPU: of a GPU its data sheet is known, or it is assumed.
Hardware known_hardware(const Settings& settings, const aio::ProfileCatalog& catalog,
                        const std::string& gpu = "");
/// With the standard catalog; where there is none, all is assumed.
Hardware known_hardware(const Settings& settings, const std::string& gpu = "");

/// Names of the data sheets in configs/hardware, which are built into the program.
std::vector<std::string> hardware_names();

/// Replaces what a data sheet tells: by its name, by a .json file of the same form, or a .pb file
/// that `headrace probe` has stored, maybe on another machine. Drives add up, other kinds may be
/// named once. InputError, UsageError.
void add_named_hardware(const std::vector<std::string>& names, const Settings& settings,
                        Hardware& hardware);

/// Whether one of the names is a GPU's. InputError for a data sheet that is not known.
bool names_gpu(const std::vector<std::string>& names);

/// Makes the options' first guesses those of the hardware, but not above the limits that are set.
void use_hardware(const Hardware& hardware, const Settings& settings, EngineOptions& options);

/// "7.45 GB/s", "165 TFLOP/s": decimal.
std::string format_rate(double per_second, const char* unit);

}  // namespace headrace::engine
