#pragma once

#include <string_view>

namespace headrace {

/// A named place at which a test can let the process die as in a power failure: with the
/// environment variable HEADRACE_KILL_AT=<name>:<n>, the n-th pass of any thread raises SIGKILL.
/// Otherwise it does nothing. Thread-safe.
void fault_point(std::string_view name);

}  // namespace headrace
