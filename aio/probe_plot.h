#pragma once

#include <string>
#include <vector>

#include "aio/probe_search.h"

namespace headrace::aio {

/// Rates over bytes in flight: one group of bars (read, write, mixed) per amount, each the highest
/// rate of the points that keep so much in flight. Block characters, or plain ASCII. Empty when
/// nothing was measured.
std::string plot_rates(const std::vector<ProbePoint>& points, bool utf8);

/// A series as one line: eight heights, or ten digits in ASCII ('9' is the highest value). Longer
/// series are averaged down to `columns`.
std::string plot_series(const std::vector<double>& values, size_t columns, bool utf8);

}  // namespace headrace::aio
