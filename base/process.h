#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/units.h"

namespace headrace {

/// Largest resident set of this process so far (VmHWM), and now (VmRSS). IoError if /proc is not
/// there.
Bytes peak_resident_bytes();
Bytes resident_bytes();

/// Of this machine; empty where the system does not tell.
std::string host_name();

/// When a process of this machine started, in clock ticks since the machine did; empty where there
/// is no such process. Number and start together name a process for good.
std::optional<uint64_t> process_start_ticks(int64_t process);

}  // namespace headrace
