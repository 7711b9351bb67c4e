#include "scheduler/footprint.h"

#include <algorithm>
#include <limits>
#include <map>

#include "scheduler/input_check.h"
#include "scheduler/placement.h"
#include "scheduler/schedule.h"

namespace headrace::scheduler {

namespace {

/// First fit at the lowest address in an unbounded range.
class FirstFit {
 public:
  int64_t take(int64_t size) {
    auto hole = holes_.begin();
    while (hole->second - hole->first < size) {
      ++hole;
    }
    const auto [begin, end] = *hole;
    holes_.erase(hole);
    if (begin + size < end) {
      holes_.emplace(begin + size, end);
    }
    return begin;
  }
  void give(int64_t begin, int64_t size) {
    auto hole = holes_.emplace(begin, begin + size).first;
    const auto next = std::next(hole);
    if (next != holes_.end() && next->first == hole->second) {
      hole->second = next->second;
      holes_.erase(next);
    }
    if (hole != holes_.begin() && std::prev(hole)->second == hole->first) {
      std::prev(hole)->second = hole->second;
      holes_.erase(hole);
    }
  }
  int64_t top() const { return holes_.rbegin()->first; }

 private:
  std::map<int64_t, int64_t> holes_{{0, std::numeric_limits<int64_t>::max()}};
};

void find_lifetimes(const Trace& trace, const std::vector<ObjectFacts>& objects,
                    Footprint& footprint) {
  const size_t operations = trace.operations.size();
  footprint.anchored_from.resize(operations);
  footprint.anchored_until.resize(operations);
  std::vector<int64_t> last(objects.size(), -1);
  for (size_t i = 0; i < operations; ++i) {
    for (const Use& use : trace.operations[i].uses) {
      const ObjectFacts& facts = objects[index_of(use.object)];
      if (facts.home || !anchor_of(facts)) {
        continue;
      }
      if (last[index_of(use.object)] < 0) {
        footprint.anchored_from[i].push_back(use.object);
      }
      last[index_of(use.object)] = static_cast<int64_t>(i);
    }
  }
  for (uint32_t o = 0; o < objects.size(); ++o) {
    if (last[o] >= 0) {
      footprint.anchored_until[static_cast<size_t>(last[o])].push_back(ObjectId{o});
    }
  }
}

void place_anchored(const std::vector<ObjectFacts>& objects, Bytes alignment,
                    Footprint& footprint) {
  footprint.anchor_offset.assign(objects.size(), -1);
  std::array<FirstFit, 2> arenas;
  for (size_t i = 0; i < footprint.anchored_from.size(); ++i) {
    for (const ObjectId object : footprint.anchored_from[i]) {
      const ObjectFacts& facts = objects[index_of(object)];
      footprint.anchor_offset[index_of(object)] =
          arenas[static_cast<size_t>(*anchor_of(facts))].take(slot_bytes(facts, alignment));
    }
    for (size_t tier = 0; tier < arenas.size(); ++tier) {
      footprint.anchored_top[tier].push_back(arenas[tier].top());
    }
    for (const ObjectId object : footprint.anchored_until[i]) {
      const ObjectFacts& facts = objects[index_of(object)];
      arenas[static_cast<size_t>(*anchor_of(facts))].give(footprint.anchor_offset[index_of(object)],
                                                          slot_bytes(facts, alignment));
    }
  }
}

}  // namespace

int64_t Footprint::above_homes(Tier tier, size_t operation) const {
  const auto t = static_cast<size_t>(tier);
  return detail::checked_add(anchored_top[t][operation],
                             std::max(floating[t][operation], transit[t][operation]));
}

Footprint::Peak Footprint::peak(Tier tier) const {
  const auto t = static_cast<size_t>(tier);
  Peak peak{tier == Tier::host ? largest_transit : 0, floating[t].size()};
  for (size_t i = 0; i < floating[t].size(); ++i) {
    const int64_t bytes = above_homes(tier, i);
    if (bytes > peak.bytes || (bytes == peak.bytes && peak.operation == floating[t].size())) {
      peak = {bytes, i};
    }
  }
  peak.bytes = detail::checked_add(peak.bytes, homes[t]);
  return peak;
}

Footprint measure_footprint(const Trace& trace, const std::vector<ObjectFacts>& objects,
                            Bytes alignment, bool has_device) {
  Footprint footprint;
  find_lifetimes(trace, objects, footprint);
  place_anchored(objects, alignment, footprint);
  for (const ObjectFacts& facts : objects) {
    if (facts.home && *facts.home != Tier::nvme) {
      int64_t& homes = footprint.homes[static_cast<size_t>(*facts.home)];
      homes = detail::checked_add(homes, slot_bytes(facts, alignment));
    }
  }
  for (auto& by_operation : footprint.floating) {
    by_operation.resize(trace.operations.size());
  }
  for (auto& by_operation : footprint.transit) {
    by_operation.resize(trace.operations.size());
  }
  std::vector<bool> uses_device(trace.operations.size());
  for (size_t i = 0; i < trace.operations.size(); ++i) {
    for (const Use& use : trace.operations[i].uses) {
      const ObjectFacts& facts = objects[index_of(use.object)];
      const int64_t size = slot_bytes(facts, alignment);
      if (use.tier == Tier::device) {
        uses_device[i] = true;
        if (has_device && !anchor_of(facts)) {
          footprint.largest_transit = std::max(footprint.largest_transit, size);
        }
      }
      if (anchor_of(facts) != use.tier) {
        int64_t& floating = footprint.floating[static_cast<size_t>(use.tier)][i];
        floating = detail::checked_add(floating, size);
      }
    }
  }
  for (size_t i = 0; i < trace.operations.size(); ++i) {
    if (uses_device[i]) {
      footprint.transit[static_cast<size_t>(Tier::host)][i] = footprint.largest_transit;
    }
  }
  return footprint;
}

Bytes minimum_device_budget(const Trace& trace, const std::vector<ObjectFacts>& objects,
                            Bytes alignment) {
  check_trace(trace, objects, alignment);
  return Bytes(measure_footprint(trace, objects, alignment, true).peak(Tier::device).bytes);
}

Bytes minimum_host_budget(const Trace& trace, const std::vector<ObjectFacts>& objects, Bytes device,
                          Bytes alignment) {
  check_trace(trace, objects, alignment);
  const bool has_device = device.count() > 0;
  return Bytes(measure_footprint(trace, objects, alignment, has_device).peak(Tier::host).bytes);
}

}  // namespace headrace::scheduler
