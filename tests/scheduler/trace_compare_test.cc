#include "scheduler/trace_compare.h"

#include <gmock/gmock.h>

#include "support.h"

namespace headrace::scheduler::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Length of a longest common subsequence, by the textbook's table.
size_t common_length(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  std::vector<std::vector<size_t>> best(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      best[i][j] =
          a[i - 1] == b[j - 1] ? best[i - 1][j - 1] + 1 : std::max(best[i - 1][j], best[i][j - 1]);
    }
  }
  return best[a.size()][b.size()];
}

std::vector<uint32_t> random_sequence(Random& random) {
  std::vector<uint32_t> sequence(random.below(25));
  const uint64_t letters = 1 + random.below(6);
  for (uint32_t& element : sequence) {
    element = static_cast<uint32_t>(random.below(letters));
  }
  return sequence;
}

/// What lies between the ranges is equal in both; returns its length.
size_t matched(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b,
               const std::vector<DifferingRange>& ranges) {
  size_t i = 0;
  size_t j = 0;
  size_t length = 0;
  const auto walk = [&](size_t i_end, size_t j_end) {
    ASSERT_LE(i, i_end);
    ASSERT_EQ(i_end - i, j_end - j);
    for (; i < i_end; ++i, ++j, ++length) {
      ASSERT_EQ(a[i], b[j]);
    }
  };
  for (size_t r = 0; r < ranges.size(); ++r) {
    const DifferingRange& range = ranges[r];
    EXPECT_TRUE(range.first_begin < range.first_end || range.second_begin < range.second_end);
    EXPECT_TRUE(r == 0 || i < range.first_begin) << "ranges that touch are one";
    walk(range.first_begin, range.second_begin);
    i = range.first_end;
    j = range.second_end;
  }
  walk(a.size(), b.size());
  return length;
}

TEST(DifferingRanges, LeaveALongestCommonSubsequence) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed, 21);
    const auto a = random_sequence(random);
    const auto b = random_sequence(random);
    ASSERT_EQ(matched(a, b, differing_ranges(a, b)), common_length(a, b)) << seed;
  }
}

TEST(DifferingRanges, AreOneWhereTooMuchDiffers) {
  const std::vector<uint32_t> a{1, 2, 3, 4, 5, 6, 9};
  const std::vector<uint32_t> b{1, 7, 3, 8, 5, 0, 9};
  EXPECT_EQ(differing_ranges(a, b, 6).size(), 3U);
  EXPECT_THAT(differing_ranges(a, b, 5), ElementsAre(DifferingRange{1, 6, 1, 6}));
  EXPECT_THAT(differing_ranges(a, a, 0), IsEmpty());
}

/// Four operations on three objects, compiled once.
SavedTrace hand_made() {
  Case step;
  const ObjectId weights = step.add("weights", 4096, Tier::nvme, Tier::nvme);
  const ObjectId state = step.add("state", 8192, Tier::nvme, Tier::nvme);
  const ObjectId gradient = step.add("gradient", 4096, Tier::host);
  step.run("forward", Lane::compute, 1, {reads(weights, Tier::host)});
  step.run("backward", Lane::compute, 2,
           {reads(weights, Tier::host), writes(gradient, Tier::host)});
  step.run("norm", Lane::cpu_optimizer, 3, {reads(gradient, Tier::host)});
  step.run(
      "update", Lane::cpu_optimizer, 4,
      {last_reads(gradient, Tier::host), updates(state, Tier::host), updates(weights, Tier::host)});
  step.budgets.host = Bytes(1 << 20);
  SavedTrace trace;
  trace.description = "by hand";
  trace.step = "training";
  trace.policy = "lru";
  trace.trace = step.trace;
  trace.objects = step.objects;
  trace.budgets = step.budgets;
  trace.rates = step.rates;
  trace.rounds.resize(1);
  trace.rounds[0].schedule = make_lru_policy()->compile(step.input());
  return trace;
}

TEST(CompareTraces, TheSameTraceIsEqualWhateverItsDescription) {
  const SavedTrace first = hand_made();
  SavedTrace second = first;
  second.description = "from elsewhere";
  const TraceDifference difference = compare_traces(first, second);
  EXPECT_TRUE(difference.is_equal);
  EXPECT_THAT(difference.operations, IsEmpty());
  EXPECT_EQ(difference.other_durations, 0U);
  EXPECT_THAT(difference.only_in_first, IsEmpty());
  EXPECT_THAT(difference.only_in_second, IsEmpty());
  EXPECT_THAT(difference.changed, IsEmpty());
}

TEST(CompareTraces, AnOperationThatIsLeftOutAndOneThatIsNew) {
  const SavedTrace first = hand_made();
  SavedTrace second = first;
  auto& operations = second.trace.operations;
  operations.erase(operations.begin() + 2);  // norm
  operations.insert(operations.begin(), Operation{"embed", Lane::compute, {}, 1});
  operations[1].seconds = 1.5;  // forward
  const TraceDifference difference = compare_traces(first, second);
  EXPECT_FALSE(difference.is_equal);
  EXPECT_THAT(difference.operations,
              ElementsAre(DifferingRange{0, 0, 0, 1}, DifferingRange{2, 3, 3, 3}));
  EXPECT_EQ(difference.other_durations, 1U);
}

TEST(CompareTraces, AnotherUseIsAnotherOperation) {
  const SavedTrace first = hand_made();
  SavedTrace second = first;
  second.trace.operations[1].uses[0].access = Access::update;
  EXPECT_THAT(compare_traces(first, second).operations, ElementsAre(DifferingRange{1, 2, 1, 2}));
  second = first;
  second.trace.operations[3].uses[0].discard_after = false;
  EXPECT_THAT(compare_traces(first, second).operations, ElementsAre(DifferingRange{3, 4, 3, 4}));
}

TEST(CompareTraces, ObjectsAreToldApartByName) {
  const SavedTrace first = hand_made();
  SavedTrace second = first;
  second.objects[0].size = Bytes(8192);
  second.objects[1].name = "moments";
  const TraceDifference difference = compare_traces(first, second);
  EXPECT_THAT(difference.only_in_first, ElementsAre("state"));
  EXPECT_THAT(difference.only_in_second, ElementsAre("moments"));
  EXPECT_THAT(difference.changed, ElementsAre("weights"));
  EXPECT_THAT(difference.operations, ElementsAre(DifferingRange{3, 4, 3, 4}));
}

TEST(CompareTraces, BudgetsRatesAndSchedulesCount) {
  const SavedTrace first = hand_made();
  const auto is_equal = [&](const std::function<void(SavedTrace&)>& change) {
    SavedTrace second = first;
    change(second);
    const TraceDifference difference = compare_traces(first, second);
    EXPECT_THAT(difference.operations, IsEmpty());
    return difference.is_equal;
  };
  EXPECT_FALSE(is_equal([](SavedTrace& t) { t.budgets.host += kMiB; }));
  EXPECT_FALSE(is_equal([](SavedTrace& t) { t.rates.nvme_latency = 1; }));
  EXPECT_FALSE(is_equal([](SavedTrace& t) { t.policy = "optimal"; }));
  EXPECT_FALSE(is_equal([](SavedTrace& t) { t.rounds[0].schedule.actions[0].offset += 4096; }));
  EXPECT_FALSE(is_equal([](SavedTrace& t) { t.rounds[0].number = 2; }));
}

}  // namespace
}  // namespace headrace::scheduler::test
