// Random steps that are announced one by one and often are not what was expected: every operation
// sees what it sees when operations simply run one after another on memory.
#include <gtest/gtest.h>

#include <set>

#include "tests/engine/announced_steps.h"

namespace headrace::engine {
namespace {

using scheduler::Access;
using scheduler::Lane;
using scheduler::Life;
using scheduler::ObjectFacts;
using scheduler::Operation;
using test::AnnouncedSteps;
using test::kSlot;
using test::Operations;

struct Program {
  std::vector<ObjectFacts> objects;
  Operations first;  ///< gives the persistent objects their values
  std::vector<Operations> steps;
};

bool chance(Random& random, uint64_t percent) {
  return random.below(100) < percent;
}

Tier tier_of(Random& random, bool has_device) {
  return has_device && chance(random, 50) ? Tier::device : Tier::host;
}

Operation random_operation(Random& random, const std::vector<ObjectFacts>& objects,
                           const std::string& name, bool has_device) {
  Operation operation{name, chance(random, 50) ? Lane::compute : Lane::cpu_optimizer, {}, 1e-5};
  const Tier tier = tier_of(random, has_device);
  operation.lane = tier == Tier::device ? Lane::compute : operation.lane;
  operation.in_order = chance(random, 20);
  std::set<uint32_t> used;
  for (uint64_t uses = 1 + random.below(3); uses > 0; --uses) {
    const auto object = static_cast<uint32_t>(random.below(objects.size()));
    if (!used.insert(object).second) {
      continue;
    }
    const bool dies = !objects[object].home && chance(random, 25);
    operation.uses.push_back({ObjectId{object}, tier, static_cast<Access>(random.below(3)), dies});
  }
  return operation;
}

/// The operations that can run, one after another, on what a step begins with.
Operations possible(const Program& program, const Operations& operations) {
  std::vector<Life> lives;
  for (const ObjectFacts& facts : program.objects) {
    lives.push_back(facts.home ? Life::alive : Life::unborn);
  }
  Operations result;
  for (const Operation& operation : operations) {
    if (scheduler::pass_operation(operation, program.objects, lives).empty()) {
      result.push_back(operation);
    }
  }
  return result;
}

Program random_program(Random& random, bool has_device) {
  Program program;
  const auto add = [&](Tier floor, std::optional<Tier> home) {
    const auto size = Bytes(kSlot * static_cast<int64_t>(1 + random.below(3)));
    program.objects.push_back(
        {"object." + std::to_string(program.objects.size()), size, floor, home});
  };
  for (uint64_t n = 3 + random.below(4); n > 0; --n) {
    add(Tier::nvme, chance(random, 60)                 ? Tier::nvme
                    : has_device && chance(random, 50) ? Tier::device
                                                       : Tier::host);
  }
  for (uint64_t n = 1 + random.below(4); n > 0; --n) {
    add(chance(random, 70) ? Tier::nvme : Tier::host, std::nullopt);
  }
  for (uint32_t o = 0; o < program.objects.size(); ++o) {
    if (program.objects[o].home) {
      program.first.push_back({"first." + std::to_string(o),
                               Lane::cpu_optimizer,
                               {{ObjectId{o}, Tier::host, Access::write, false}},
                               1e-5});
    }
  }
  for (int s = 0; s < 3; ++s) {
    Operations operations;
    for (uint64_t n = 8 + random.below(20); n > 0; --n) {
      operations.push_back(random_operation(random, program.objects,
                                            "step." + std::to_string(s) + "." + std::to_string(n),
                                            has_device));
    }
    program.steps.push_back(possible(program, operations));
  }
  return program;
}

Operations mutated(Random& random, const Program& program, const Operations& step) {
  Operations result = step;
  for (uint64_t changes = 1 + random.below(4); changes > 0 && !result.empty(); --changes) {
    const Operations& other = program.steps[random.below(program.steps.size())];
    const auto at = static_cast<ptrdiff_t>(random.below(result.size()));
    switch (other.empty() ? 1 : random.below(5)) {
      case 0:
        result.insert(result.begin() + at, other[random.below(other.size())]);
        break;
      case 1:
        result.erase(result.begin() + at);
        break;
      case 2:
        result[static_cast<size_t>(at)] = other[random.below(other.size())];
        break;
      case 3:
        result.resize(static_cast<size_t>(at) + 1);
        break;
      default:
        result.insert(result.end(), other.begin(), other.end());
        break;
    }
  }
  return possible(program, result);
}

/// The smallest budgets for all of the program's operations, and some more: slots of objects
/// without home that are pinned to the host are laid out without knowing how long they stay.
std::pair<Bytes, Bytes> budgets(const Program& program, bool has_device, Bytes more) {
  scheduler::Trace all{"all", program.first};
  for (const Operations& step : program.steps) {
    all.operations.insert(all.operations.end(), step.begin(), step.end());
  }
  Bytes pinned;
  for (const ObjectFacts& facts : program.objects) {
    pinned += facts.home || facts.floor == Tier::nvme ? Bytes(0) : facts.size;
  }
  Bytes device;
  if (has_device) {
    device = scheduler::minimum_device_budget(all, program.objects, Bytes(kSlot)) + more;
  }
  return {device, scheduler::minimum_host_budget(all, program.objects, device, Bytes(kSlot)) +
                      pinned + more};
}

struct Case {
  bool has_device;
  aio::BackendKind backend;
};

class AnnouncedRandomSteps : public testing::TestWithParam<Case> {};

TEST_P(AnnouncedRandomSteps, EveryOperationSeesWhatASequentialRunSees) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed, 91);
    const bool has_device = GetParam().has_device;
    const Program program = random_program(random, has_device);
    const auto [device, host] =
        budgets(program, has_device, Bytes(kSlot * static_cast<int64_t>(random.below(4))));
    AnnouncedSteps steps(program.objects, device, host, test::io_engine(GetParam().backend));
    steps.run(program.first);
    std::vector<int> times(program.steps.size());
    for (int n = 0; n < 16; ++n) {
      SCOPED_TRACE("step " + std::to_string(n + 2));
      const size_t kind = random.below(program.steps.size());
      if (chance(random, 50)) {
        steps.run(mutated(random, program, program.steps[kind]));
        continue;
      }
      const AnnouncedReport report = steps.run(program.steps[kind]);
      if (times[kind]++ >= 2) {
        EXPECT_EQ(report.on_demand, 0U);  // it is one that is kept
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnnouncedRandomSteps,
                         testing::Values(Case{true, aio::BackendKind::io_uring},
                                         Case{true, aio::BackendKind::thread_pool},
                                         Case{false, aio::BackendKind::io_uring}));

}  // namespace
}  // namespace headrace::engine
