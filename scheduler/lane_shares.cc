#include "scheduler/lane_shares.h"

#include <algorithm>

#include "scheduler/costs.h"

namespace headrace::scheduler {

std::vector<LaneShares> lane_shares(const CompileInput& input, const Timeline& timeline,
                                    int slices) {
  std::vector<LaneShares> shares(static_cast<size_t>(slices));
  const double length = timeline.seconds / slices;
  if (length <= 0) {
    return shares;
  }
  for (const Span& span : timeline.spans) {
    const double end = span.end - latency_of(input.rates, span.lane);
    const auto first = static_cast<size_t>(span.begin / length);
    for (size_t slice = first; slice < shares.size(); ++slice) {
      const double from = static_cast<double>(slice) * length;
      if (from >= end) {
        break;
      }
      const double part = std::min(end, from + length) - std::max(span.begin, from);
      shares[slice][static_cast<size_t>(span.lane)] += std::max(part, 0.0) / length;
    }
  }
  return shares;
}

}  // namespace headrace::scheduler
