#pragma once

#include <string>

#include "base/units.h"

namespace headrace::tools {

/// "+3.1 %": how far a figure is above its lower bound; "-" where that is 0.
std::string over_bound(double actual, double bound);

/// "1.50 GiB (bound 1.45 GiB, +3.4 %)".
std::string with_bound(Bytes moved, Bytes bound);

}  // namespace headrace::tools
