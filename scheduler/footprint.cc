#include "scheduler/footprint.h"

#include <algorithm>
#include <limits>
#include <map>

#include "scheduler/input_check.h"
#include "scheduler/placement.h"

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
  /// Takes a given range; one that is not free is left to check_initial().
  void take_at(int64_t begin, int64_t size) {
    auto hole = holes_.upper_bound(begin);
    if (hole == holes_.begin() || (--hole)->second < begin + size) {
      return;
    }
    const auto [first, last] = *hole;
    holes_.erase(hole);
    if (first < begin) {
      holes_.emplace(first, begin);
    }
    if (begin + size < last) {
      holes_.emplace(begin + size, last);
    }
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

/// When the slots of objects without home are taken and given back.
void find_lifetimes(const CompileInput& input, Footprint& footprint) {
  const auto& objects = *input.objects;
  const auto& operations = input.trace->operations;
  const bool ends_all = input.foresight == Foresight::whole_step;
  footprint.anchored_from.resize(operations.size());
  footprint.anchored_until.resize(operations.size());
  footprint.anchor_offset.assign(objects.size(), -1);
  constexpr int64_t kNotTaken = -1;
  constexpr int64_t kNoUse = -2;
  std::vector<int64_t> last(objects.size(), kNotTaken);
  std::vector<bool> is_given(objects.size(), ends_all);
  for (const Residency& residency : input.initial) {
    const ObjectFacts& facts = objects[index_of(residency.object)];
    const auto anchor = facts.home ? std::nullopt : anchor_of(facts);
    if (!anchor) {
      continue;
    }
    last[index_of(residency.object)] = kNoUse;
    if (*anchor == residency.tier) {
      footprint.anchor_offset[index_of(residency.object)] =
          residency.offset - footprint.homes[static_cast<size_t>(*anchor)];
    }
  }
  for (uint32_t o = 0; o < objects.size() && !operations.empty(); ++o) {
    if (last[o] == kNoUse && footprint.anchor_offset[o] < 0) {
      footprint.anchored_from[0].push_back(ObjectId{o});
    }
  }
  for (size_t i = 0; i < operations.size(); ++i) {
    for (const Use& use : operations[i].uses) {
      const uint32_t o = index_of(use.object);
      if (objects[o].home || !anchor_of(objects[o])) {
        continue;
      }
      if (last[o] == kNotTaken) {
        footprint.anchored_from[i].push_back(use.object);
      }
      last[o] = static_cast<int64_t>(i);
      is_given[o] = ends_all || use.discard_after;
    }
  }
  for (uint32_t o = 0; o < objects.size(); ++o) {
    if (last[o] >= 0 && is_given[o]) {
      footprint.anchored_until[static_cast<size_t>(last[o])].push_back(ObjectId{o});
    }
  }
}

/// Returns what the anchored slots take in the host when the trace has ended.
int64_t place_anchored(const CompileInput& input, Footprint& footprint) {
  const auto& objects = *input.objects;
  const Bytes alignment = input.budgets.alignment;
  std::array<FirstFit, 2> arenas;
  for (size_t o = 0; o < objects.size(); ++o) {
    if (footprint.anchor_offset[o] >= 0) {
      arenas[static_cast<size_t>(*anchor_of(objects[o]))].take_at(
          footprint.anchor_offset[o], slot_bytes(objects[o], alignment));
    }
  }
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
  return arenas[static_cast<size_t>(Tier::host)].top();
}

/// What a copy on its way from or to the device needs in the host, whichever floating object it is.
int64_t largest_transit(const CompileInput& input) {
  int64_t largest = 0;
  const auto passes = [&](ObjectId object) {
    const ObjectFacts& facts = (*input.objects)[index_of(object)];
    if (!anchor_of(facts)) {
      largest = std::max(largest, slot_bytes(facts, input.budgets.alignment));
    }
  };
  if (input.budgets.device.count() == 0) {
    return 0;
  }
  for (const Operation& operation : input.trace->operations) {
    for (const Use& use : operation.uses) {
      if (use.tier == Tier::device) {
        passes(use.object);
      }
    }
  }
  for (const Residency& residency : input.initial) {
    if (residency.tier == Tier::device && residency.dirty) {
      passes(residency.object);
    }
  }
  return largest;
}

}  // namespace

int64_t Footprint::above_homes(Tier tier, size_t operation) const {
  const auto t = static_cast<size_t>(tier);
  return detail::checked_add(anchored_top[t][operation],
                             std::max(floating[t][operation], transit[t][operation]));
}

Footprint::Peak Footprint::peak(Tier tier) const {
  const auto t = static_cast<size_t>(tier);
  Peak peak{tier == Tier::host ? end_in_host : 0, floating[t].size()};
  for (size_t i = 0; i < floating[t].size(); ++i) {
    const int64_t bytes = above_homes(tier, i);
    if (bytes > peak.bytes || (bytes == peak.bytes && peak.operation == floating[t].size())) {
      peak = {bytes, i};
    }
  }
  peak.bytes = detail::checked_add(peak.bytes, homes[t]);
  return peak;
}

Footprint measure_footprint(const CompileInput& input) {
  const auto& objects = *input.objects;
  const auto& operations = input.trace->operations;
  const Bytes alignment = input.budgets.alignment;
  Footprint footprint;
  for (const ObjectFacts& facts : objects) {
    if (facts.home && *facts.home != Tier::nvme) {
      int64_t& homes = footprint.homes[static_cast<size_t>(*facts.home)];
      homes = detail::checked_add(homes, slot_bytes(facts, alignment));
    }
  }
  find_lifetimes(input, footprint);
  const int64_t anchored_at_end = place_anchored(input, footprint);
  footprint.largest_transit = largest_transit(input);
  if (input.foresight != Foresight::expected_part) {
    footprint.end_in_host = detail::checked_add(anchored_at_end, footprint.largest_transit);
  }
  for (size_t tier = 0; tier < footprint.floating.size(); ++tier) {
    footprint.floating[tier].resize(operations.size());
    footprint.transit[tier].resize(operations.size());
  }
  for (size_t i = 0; i < operations.size(); ++i) {
    for (const Use& use : operations[i].uses) {
      const ObjectFacts& facts = objects[index_of(use.object)];
      if (use.tier == Tier::device) {
        footprint.transit[static_cast<size_t>(Tier::host)][i] = footprint.largest_transit;
      }
      if (anchor_of(facts) != use.tier) {
        int64_t& floating = footprint.floating[static_cast<size_t>(use.tier)][i];
        floating = detail::checked_add(floating, slot_bytes(facts, alignment));
      }
    }
  }
  return footprint;
}

namespace {

int64_t minimum_budget(const Trace& trace, const std::vector<ObjectFacts>& objects, Bytes device,
                       Bytes alignment, Tier tier) {
  check_trace(trace, objects, alignment);
  CompileInput input;
  input.trace = &trace;
  input.objects = &objects;
  input.budgets.device = device;
  input.budgets.alignment = alignment;
  return measure_footprint(input).peak(tier).bytes;
}

}  // namespace

Bytes minimum_device_budget(const Trace& trace, const std::vector<ObjectFacts>& objects,
                            Bytes alignment) {
  // Any device will do: what is asked for does not depend on its size.
  return Bytes(minimum_budget(trace, objects, alignment, alignment, Tier::device));
}

Bytes minimum_host_budget(const Trace& trace, const std::vector<ObjectFacts>& objects, Bytes device,
                          Bytes alignment) {
  return Bytes(minimum_budget(trace, objects, device, alignment, Tier::host));
}

}  // namespace headrace::scheduler
