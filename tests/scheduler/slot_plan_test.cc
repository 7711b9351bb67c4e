#include "scheduler/slot_plan.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>

#include "scheduler/compiler.h"
#include "scheduler/placement.h"
#include "scheduler/slot_spans.h"
#include "transformer.h"

namespace headrace::scheduler::test {
namespace {

Footprint footprint_of(const CompileInput& input) {
  return measure_footprint(input);
}

bool meet(int64_t a_begin, int64_t a_end, int64_t b_begin, int64_t b_end) {
  return a_begin < b_end && b_begin < a_end;
}

/// Everything that an action touches in an arena lies in a span of that copy at that time.
void expect_all_uses_in_spans(const CompileInput& input, const UnplacedSchedule& unplaced,
                              const std::vector<SlotSpan>& spans, Tier tier) {
  const auto expect_span = [&](ObjectId object, int64_t action) {
    const ObjectFacts& facts = (*input.objects)[index_of(object)];
    if (facts.home == tier) {
      return;
    }
    EXPECT_TRUE(std::any_of(spans.begin(), spans.end(),
                            [&](const SlotSpan& span) {
                              return span.object == object && span.first <= action &&
                                     action <= span.last;
                            }))
        << facts.name << " in " << to_string(tier) << ", action " << action;
  };
  for (size_t i = 0; i < unplaced.schedule.actions.size(); ++i) {
    const Action& action = unplaced.schedule.actions[i];
    const auto index = static_cast<int64_t>(i);
    if (action.kind == ActionKind::transfer && (action.from == tier || action.to == tier)) {
      expect_span(action.object, index);
    }
    if (action.kind == ActionKind::operation) {
      for (const Use& use : input.trace->operations[action.operation].uses) {
        if (use.tier == tier) {
          expect_span(use.object, index);
        }
      }
    }
  }
}

/// At no action more bytes are needed than the arena has. An anchored slot, which is given from
/// before the preparation of its first operation on, counts from that operation.
void expect_fits(const std::vector<SlotSpan>& spans, int64_t room,
                 const std::vector<Action>& actions) {
  std::vector<int64_t> operations;
  for (size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == ActionKind::operation) {
      operations.push_back(static_cast<int64_t>(i));
    }
  }
  for (int64_t i = 0; i < static_cast<int64_t>(actions.size()); ++i) {
    int64_t bytes = 0;
    for (const SlotSpan& span : spans) {
      const bool is_anchored = span.offset >= 0 && span.first >= 0;
      const int64_t first = is_anchored ? operations[span.position] : span.first;
      bytes += first <= i && i <= span.last ? span.size : 0;
    }
    EXPECT_LE(bytes, room) << "action " << i;
  }
}

/// Spans with the places that the plan chose; those that have none, or share operation and object,
/// are left out.
std::vector<SlotSpan> placed(const std::vector<SlotSpan>& spans, const SlotPlan& plan, Tier tier) {
  std::map<std::pair<uint32_t, uint32_t>, int> count;
  for (const SlotSpan& span : spans) {
    ++count[{index_of(span.object), span.position}];
  }
  std::vector<SlotSpan> result;
  for (SlotSpan span : spans) {
    if (span.offset < 0 && count[{index_of(span.object), span.position}] == 1) {
      span.offset = plan.offset_of(span.object, tier, span.position).value_or(-1);
      if (span.offset >= 0) {
        result.push_back(span);
      }
    }
  }
  return result;
}

/// The chosen places before this one, and all that were given.
std::vector<SlotSpan> spans_around(const std::vector<SlotSpan>& chosen, size_t before,
                                   const std::vector<SlotSpan>& spans) {
  std::vector<SlotSpan> others(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(before));
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(others),
               [](const SlotSpan& span) { return span.offset >= 0; });
  return others;
}

void expect_sound_places(const Case& test_case, const VictimModel& model, int& places) {
  const CompileInput input = test_case.input();
  const UnplacedSchedule unplaced = compile_unplaced(input, model);
  const Footprint footprint = footprint_of(input);
  const auto spans = slot_spans(input, footprint, unplaced);
  const SlotPlan plan(input, footprint, unplaced);
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto t = static_cast<size_t>(tier);
    const int64_t budget =
        (tier == Tier::device ? input.budgets.device : input.budgets.host).count();
    expect_all_uses_in_spans(input, unplaced, spans[t], tier);
    expect_fits(spans[t], budget - footprint.homes[t], unplaced.schedule.actions);
    const std::vector<SlotSpan> with_places = placed(spans[t], plan, tier);
    places += static_cast<int>(with_places.size());
    for (size_t a = 0; a < with_places.size(); ++a) {
      const SlotSpan& span = with_places[a];
      EXPECT_GE(span.offset, footprint.homes[t]);
      EXPECT_LE(span.offset + span.size, budget);
      for (const SlotSpan& other : spans_around(with_places, a, spans[t])) {
        const bool same_time = span.first <= other.last && other.first <= span.last;
        EXPECT_FALSE(same_time && meet(span.offset, span.offset + span.size, other.offset,
                                       other.offset + other.size))
            << "objects " << index_of(span.object) << " and " << index_of(other.object);
      }
    }
  }
}

TEST(SlotPlan, SlotsThatAreNeededTogetherDoNotOverlap) {
  int places = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed, 51);
    Case test_case = random_case(random);
    SCOPED_TRACE(seed);
    for (int round = 0; round < 2; ++round) {
      const CompileInput input = test_case.input();
      expect_sound_places(test_case, FarthestUse(input, {1, 0}), places);
      test_case.initial = compile_with(input, LeastRecentlyUsed()).final;
    }
    if (HasFailure()) {
      FAIL() << describe(test_case);
    }
  }
  EXPECT_GT(places, 1000);
}

TEST(SlotPlan, PlacedSchedulesAreSound) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed, 52);
    Case test_case = random_case(random);
    for (int round = 0; round < 3; ++round) {
      const CompileInput input = test_case.input();
      const KeepPlan plan(input, 1);
      ASSERT_TRUE(plan.is_complete());
      const PlannedUse model(input, plan, {1, 0}, PlanTrust::in_full);
      const Schedule schedule = compile_placed(input, model, compile_unplaced(input, model));
      ASSERT_EQ(violations(input, schedule), "") << seed << "\n" << describe(test_case);
      test_case.initial = schedule.final;
    }
  }
}

// Four units for a, two for b, six for c, in an arena of ten. With a and b in the order in which
// they come, c takes the place of b, whichever end of the arena they begin at; b is needed again.
TEST(SlotPlan, LeavesRoomForWhatComesLater) {
  constexpr int64_t kUnit = 4096;
  Case test_case;
  const ObjectId a = test_case.add("a", 4 * kUnit, Tier::nvme, Tier::nvme);
  const ObjectId b = test_case.add("b", 2 * kUnit, Tier::nvme, Tier::nvme);
  const ObjectId c = test_case.add("c", 6 * kUnit, Tier::nvme, Tier::nvme);
  for (const ObjectId object : {a, b, c, b}) {
    test_case.run("read", Lane::cpu_optimizer, 1e-3, {reads(object, Tier::host)});
  }
  test_case.budgets.host = Bytes(10 * kUnit);
  const CompileInput input = test_case.input();
  const FarthestUse model(input, {1, 0});
  EXPECT_EQ(compile_with(input, model).nvme_read, Bytes(14 * kUnit));
  const Schedule placed = compile_placed(input, model, compile_unplaced(input, model));
  EXPECT_EQ(violations(input, placed), "");
  EXPECT_EQ(placed.nvme_read, Bytes(12 * kUnit));
}

TEST(PlannedUse, WorthOfWhatThePlanKeeps) {
  Case test_case;
  const ObjectId object = test_case.add("o", 4096, Tier::nvme, Tier::nvme);
  for (int i = 0; i < 4; ++i) {
    test_case.run("read", Lane::cpu_optimizer, 1, {reads(object, Tier::host)});
  }
  test_case.budgets.host = Bytes(4096);
  const CompileInput input = test_case.input();
  const KeepPlan plan(input, 1);
  ASSERT_TRUE(plan.is_complete());
  CopyFacts facts;
  facts.object = object;
  facts.tier = Tier::host;
  facts.uses_over = 1;
  facts.next_use = 3;
  facts.refetch_seconds = 8;
  const PlannedUse by_distance(input, plan, {1, 0}, PlanTrust::by_distance);
  const PlannedUse in_full(input, plan, {1, 0}, PlanTrust::in_full);
  // Three of four seconds before the use, and one.
  EXPECT_NEAR(by_distance.score(facts).keep(by_distance.now(0)), 2, 1e-6);
  EXPECT_NEAR(by_distance.score(facts).keep(by_distance.now(2)), 6, 1e-6);
  EXPECT_NEAR(in_full.score(facts).keep(in_full.now(0)), 8, 1e-6);
  EXPECT_NEAR(in_full.score(facts).keep(in_full.now(2)), 8, 1e-6);
}

}  // namespace
}  // namespace headrace::scheduler::test
