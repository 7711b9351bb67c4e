#include "scheduler/value_lives.h"

#include "scheduler/placement.h"

namespace headrace::scheduler {

namespace {

/// Where the values are before the trace, as the initial residency says.
std::vector<std::array<bool, kTierCount>> initial_places(const CompileInput& input) {
  const auto& objects = *input.objects;
  std::vector<std::array<bool, kTierCount>> places(objects.size());
  for (size_t o = 0; o < objects.size(); ++o) {
    if (objects[o].home) {
      places[o][static_cast<size_t>(*objects[o].home)] = true;
    }
  }
  for (const Residency& residency : input.initial) {
    places[index_of(residency.object)][static_cast<size_t>(residency.tier)] = true;
  }
  for (const Residency& residency : input.initial) {
    const auto& home = objects[index_of(residency.object)].home;
    if (residency.dirty && home) {
      places[index_of(residency.object)][static_cast<size_t>(*home)] = false;
    }
  }
  return places;
}

}  // namespace

std::vector<ValueLife> value_lives(const CompileInput& input) {
  const auto& objects = *input.objects;
  const auto places = initial_places(input);
  std::vector<std::vector<ValueLife>> by_object(objects.size());
  std::vector<bool> discarded(objects.size());
  for (uint32_t o = 0; o < objects.size(); ++o) {
    if (objects[o].home || places[o] != std::array<bool, kTierCount>()) {
      by_object[o].push_back({ObjectId{o}, -1, places[o], {}, false});
    }
  }
  size_t count = 0;
  for (uint32_t i = 0; i < input.trace->operations.size(); ++i) {
    for (const Use& use : input.trace->operations[i].uses) {
      auto& lives = by_object[index_of(use.object)];
      if (use.access != Access::write) {
        lives.back().needs.push_back({i, use.tier});
      }
      if (writes(use.access)) {
        ValueLife& life = lives.emplace_back();
        life.object = use.object;
        life.born = i;
        life.in[static_cast<size_t>(use.tier)] = true;
      }
      discarded[index_of(use.object)] = use.discard_after;
    }
  }
  for (size_t o = 0; o < objects.size(); ++o) {
    if (objects[o].home && !discarded[o]) {
      ValueLife& last = by_object[o].back();
      last.goes_home = !last.in[static_cast<size_t>(*objects[o].home)];
    }
    count += by_object[o].size();
  }
  std::vector<ValueLife> lives;
  lives.reserve(count);
  for (auto& of_object : by_object) {
    std::move(of_object.begin(), of_object.end(), std::back_inserter(lives));
  }
  return lives;
}

}  // namespace headrace::scheduler
