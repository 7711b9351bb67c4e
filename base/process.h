#pragma once

#include <string>

#include "base/units.h"

namespace headrace {

/// Largest resident set of this process so far (VmHWM), and now (VmRSS). IoError if /proc is not
/// there.
Bytes peak_resident_bytes();
Bytes resident_bytes();

/// Of this machine; empty where the system does not tell.
std::string host_name();

}  // namespace headrace
