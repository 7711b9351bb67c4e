#pragma once

#include <ctime>
#include <string>

namespace headrace {

/// A point in time in UTC as strftime writes it: "%Y-%m-%d %H:%M:%S". Empty for a year that does
/// not fit its type. fmt/chrono.h does this too, and takes seconds to compile in each source.
std::string utc_text(std::time_t unix_seconds, const char* format);

}  // namespace headrace
