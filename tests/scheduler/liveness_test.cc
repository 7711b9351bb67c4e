#include "scheduler/liveness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "base/error.h"
#include "transformer.h"

namespace headrace::scheduler::test {
namespace {

/// What happens around one module.
struct Moves {
  std::vector<int> fetched;
  std::vector<int> prefetched;
  std::set<int> released;
};

/// The rules of ZeRO-3 for a complete trace, written down once more from the description of
/// DeepSpeed and in its terms: dictionaries, a queue of (parameter, step) and counters.
class Oracle {
 public:
  std::map<int, int64_t> numel;
  std::set<int> persist;
  std::set<int> available;  ///< status AVAILABLE
  int64_t max_live = 0;
  int64_t max_reuse = 0;
  int64_t bucket = 0;

  void set_persistence(int64_t threshold, int64_t model_threshold) {
    int64_t total = 0;
    for (const auto& [p, n] : numel) {
      if (n + total <= model_threshold && n <= threshold) {
        persist.insert(p);
        total += n;
      }
    }
  }

  std::vector<Moves> run_pass(const std::vector<std::vector<int>>& modules) {
    std::vector<std::pair<int, size_t>> queue;
    for (size_t s = 0; s < modules.size(); ++s) {
      for (const int p : modules[s]) {
        queue.emplace_back(p, s);
      }
    }
    int64_t n_available = 0;
    size_t step_id = 0;
    std::map<int, size_t> most_recently_fetched_for;
    std::vector<Moves> all;
    for (const std::vector<int>& module : modules) {
      Moves moves;
      for (const int p : module) {
        if (available.insert(p).second) {
          moves.fetched.push_back(p);
          n_available += numel[p];
        }
      }
      std::erase_if(queue, [&](const auto& entry) { return entry.second == step_id; });
      if (bucket > 0) {
        const int64_t budget = std::min(max_live - n_available, bucket);
        int64_t n_prefetch = 0;
        while (!queue.empty() && n_prefetch < budget) {
          const auto [p, used_at] = queue.front();
          queue.erase(queue.begin());
          size_t& mark = most_recently_fetched_for[p];
          mark = std::max(mark, used_at);
          if (available.count(p) == 0) {
            moves.prefetched.push_back(p);
            available.insert(p);
            n_prefetch += numel[p];
            n_available += numel[p];
          }
        }
      }
      step_id += 1;
      for (const int p : module) {
        if (persist.count(p) == 0 && most_recently_fetched_for[p] <= step_id) {
          moves.released.insert(p);
        }
      }
      int64_t traversed = 0;
      for (size_t s = step_id; s < modules.size() && traversed < max_reuse; ++s) {
        for (const int p : modules[s]) {
          moves.released.erase(p);
          traversed += numel[p];
        }
      }
      for (const int p : moves.released) {
        available.erase(p);
        n_available -= numel[p];
      }
      all.push_back(moves);
    }
    return all;
  }
};

struct LivenessCase {
  Case test_case;
  std::vector<Elements> parameters;
  std::vector<std::vector<std::vector<int>>> passes;
  LivenessLimits limits;
  Oracle oracle;
};

/// Passes of modules that share some of their parameters, forward and often back again.
LivenessCase random_modules(Random& random) {
  LivenessCase result;
  Case& test_case = result.test_case;
  test_case.trace.name = "modules";
  test_case.budgets.alignment = Bytes(64);
  const auto up_to = [&](int64_t most) {
    return static_cast<int64_t>(random.below(static_cast<uint64_t>(most) + 1));
  };
  const int parameters = static_cast<int>(2 + up_to(10));
  for (int p = 0; p < parameters; ++p) {
    const int64_t count = 1 + up_to(random.below(2) == 0 ? 5 : 60);
    test_case.add(fmt::format("p{}", p), 2 * count, Tier::nvme,
                  random.below(3) == 0 ? Tier::host : Tier::nvme);
    result.parameters.emplace_back(count);
    result.oracle.numel[p] = count;
  }
  const ObjectId other = test_case.add("activation", 64, Tier::device);
  result.parameters.emplace_back(0);
  const uint64_t pass_count = 1 + random.below(3);
  for (uint64_t pass = 0; pass < pass_count; ++pass) {
    std::vector<std::vector<int>> modules;
    const uint64_t length = 1 + random.below(12);
    for (uint64_t m = 0; m < length; ++m) {
      std::set<int> used;
      for (uint64_t n = 1 + random.below(3); n > 0; --n) {
        used.insert(static_cast<int>(up_to(parameters - 1)));
      }
      modules.emplace_back(used.begin(), used.end());
    }
    if (random.below(2) == 0) {
      for (uint64_t m = length; m-- > 0;) {
        modules.push_back(modules[m]);
      }
    }
    for (size_t m = 0; m < modules.size(); ++m) {
      std::vector<Use> uses;
      for (const int p : modules[m]) {
        uses.push_back(reads(ObjectId{static_cast<uint32_t>(p)}));
      }
      uses.push_back(m == 0 ? writes(other) : updates(other));
      test_case.run(fmt::format("m{}.{}", pass, m), Lane::compute, 1e-6, std::move(uses))
          .starts_pass = m == 0;
    }
    result.passes.push_back(std::move(modules));
  }
  LivenessLimits& limits = result.limits;
  limits.max_live_parameters = Elements(up_to(200));
  limits.max_reuse_distance = Elements(random.below(4) == 0 ? 0 : up_to(200));
  limits.prefetch_bucket = Elements(random.below(4) == 0 ? 0 : up_to(80));
  limits.persistence_threshold = Elements(random.below(2) == 0 ? 0 : up_to(8));
  limits.model_persistence_threshold = Elements(up_to(30));
  Oracle& oracle = result.oracle;
  oracle.max_live = limits.max_live_parameters.count();
  oracle.max_reuse = limits.max_reuse_distance.count();
  oracle.bucket = limits.prefetch_bucket.count();
  oracle.set_persistence(limits.persistence_threshold.count(),
                         limits.model_persistence_threshold.count());
  return result;
}

std::vector<int> numbers(const std::vector<ObjectId>& objects) {
  std::vector<int> result;
  for (const ObjectId object : objects) {
    result.push_back(static_cast<int>(index_of(object)));
  }
  return result;
}

TEST(Liveness, PlansWhatTheDescriptionSays) {
  size_t prefetches = 0;
  size_t kept = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed, 21);
    LivenessCase c = random_modules(random);
    c.test_case.set_budgets(true, 0, 0);
    c.test_case.place_homes();
    SCOPED_TRACE(seed);
    const LivenessPlan plan = plan_liveness(c.test_case.input(), c.parameters, c.limits);
    EXPECT_EQ(numbers(plan.persistent),
              std::vector<int>(c.oracle.persist.begin(), c.oracle.persist.end()));
    size_t i = 0;
    for (const auto& modules : c.passes) {
      for (const Moves& moves : c.oracle.run_pass(modules)) {
        EXPECT_EQ(numbers(plan.operations[i].prefetch), moves.prefetched) << i;
        EXPECT_EQ(numbers(plan.operations[i].release),
                  std::vector<int>(moves.released.begin(), moves.released.end()))
            << i;
        prefetches += moves.prefetched.size();
        kept += modules[0].size() - std::min(modules[0].size(), moves.released.size());
        ++i;
      }
    }
    if (HasFailure()) {
      break;
    }
  }
  EXPECT_GT(prefetches, 1000U);
  EXPECT_GT(kept, 1000U);
}

// With room for everything, copies to the device are exactly the oracle's fetches and prefetches.
TEST(Liveness, SchedulesMoveWhatThePlanSays) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed, 22);
    LivenessCase c = random_modules(random);
    c.test_case.set_budgets(true, 1 << 16, 1 << 16);
    c.test_case.place_homes();
    SCOPED_TRACE(seed);
    const auto policy = make_liveness_policy(c.limits, c.parameters);
    const Schedule schedule = policy->compile(c.test_case.input());
    ASSERT_EQ(violations(c.test_case.input(), schedule), "") << describe(c.test_case);
    std::vector<int> moved(c.parameters.size());
    for (const Action& action : schedule.actions) {
      if (action.kind == ActionKind::transfer && action.to == Tier::device) {
        ++moved[index_of(action.object)];
      }
    }
    std::vector<int> expected(c.parameters.size());
    for (const auto& modules : c.passes) {
      for (const Moves& moves : c.oracle.run_pass(modules)) {
        for (const auto* list : {&moves.fetched, &moves.prefetched}) {
          for (const int p : *list) {
            ++expected[static_cast<size_t>(p)];
          }
        }
      }
    }
    for (const int p : c.oracle.persist) {
      expected[static_cast<size_t>(p)] += c.oracle.available.count(p) == 0 ? 1 : 0;
    }
    EXPECT_EQ(moved, expected) << describe(c.test_case);
  }
}

TEST(Liveness, KeepsBudgetsWhereDeepSpeedWouldNot) {
  TransformerShape shape{4, 2, 3 * 64, 5 * 64, 2 * 64, 1e-5, 1e-5};
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed, 23);
    Case step = transformer(shape, seed % 2 == 0 ? Tier::nvme : Tier::host);
    step.budgets.alignment = Bytes(64);
    step.set_budgets(true, 64 * static_cast<int64_t>(random.below(20)),
                     64 * static_cast<int64_t>(random.below(40)));
    step.place_homes();
    std::vector<Elements> parameters(step.objects.size());
    for (size_t o = 0; o < parameters.size(); ++o) {
      parameters[o] =
          Elements(step.objects[o].name[0] == 'W' ? step.objects[o].size.count() / 2 : 0);
    }
    const LivenessLimits limits{Elements(static_cast<int64_t>(random.below(2000))),
                                Elements(static_cast<int64_t>(random.below(1000))),
                                Elements(static_cast<int64_t>(random.below(500))),
                                Elements(random.below(2) == 0 ? 0 : 100)};
    const auto policy = make_liveness_policy(limits, parameters);
    for (int round = 0; round < 3; ++round) {
      const Schedule schedule = policy->compile(step.input());
      ASSERT_EQ(violations(step.input(), schedule), "") << seed;
      ASSERT_EQ(replay_values(step, schedule, random), "") << seed;
      step.initial = schedule.final;
    }
  }
}

TEST(Liveness, NamesAWrongNumberOfElementCounts) {
  Case step = transformer({});
  step.set_budgets(true, 0, 0);
  EXPECT_THROW(make_liveness_policy({}, {Elements(1)})->compile(step.input()), InputError);
}

}  // namespace
}  // namespace headrace::scheduler::test
