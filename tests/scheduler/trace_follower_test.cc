// Recognizing former steps in sequences of operations that are told one by one.
#include "scheduler/trace_follower.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace headrace::scheduler {
namespace {

/// A step as text: an operation per letter.
using Letters = std::string;

Operation operation(char letter) {
  Operation result;
  result.name = std::string(1, letter);
  result.uses = {{ObjectId{static_cast<uint32_t>(letter)}, Tier::host, Access::read, false}};
  return result;
}

/// What came of the operations of a step, a sign each: '.' follows, '>' switched, '*' rejoined,
/// '?' lost.
std::string run_step(TraceFollower& follower, const Letters& letters, FollowEnd* end = nullptr) {
  follower.begin();
  std::string events;
  for (const char letter : letters) {
    const FollowStep step = follower.announce(operation(letter));
    events += ".>*?"[static_cast<size_t>(step.event)];
    EXPECT_EQ(step.place.has_value(), step.event != FollowEvent::lost);
    if (step.place) {
      const Operation& same = follower.trace(step.place->trace).operations[step.place->position];
      EXPECT_TRUE(is_same_operation(same, operation(letter)));
    }
  }
  const FollowEnd ended = follower.end(std::vector<double>(letters.size(), 0.5));
  if (end != nullptr) {
    *end = ended;
  }
  return events;
}

TEST(TraceFollower, TheFirstStepIsLostAndTheSecondFollowed) {
  TraceFollower follower;
  EXPECT_EQ(follower.begin(), std::nullopt);
  EXPECT_EQ(follower.end({}).trace, std::nullopt);
  FollowEnd end;
  EXPECT_EQ(run_step(follower, "abcd", &end), "????");
  EXPECT_TRUE(end.is_new);
  const uint64_t trace = *end.trace;
  EXPECT_EQ(run_step(follower, "abcd", &end), "....");
  EXPECT_FALSE(end.is_new);
  EXPECT_EQ(end.trace, trace);
  EXPECT_EQ(end.ended_before, std::nullopt);
  EXPECT_EQ(follower.remembered(), 1U);
  EXPECT_EQ(follower.trace(trace).operations[2].seconds, 0.5);
}

TEST(TraceFollower, OperationsDifferInNameLaneOrUses) {
  const Operation a = operation('a');
  EXPECT_TRUE(is_same_operation(a, a));
  Operation other = a;
  other.seconds = 1;
  EXPECT_TRUE(is_same_operation(a, other));
  other.lane = Lane::cpu_optimizer;
  EXPECT_FALSE(is_same_operation(a, other));
  other = a;
  other.uses[0].access = Access::update;
  EXPECT_FALSE(is_same_operation(a, other));
  other = a;
  other.name = "b";
  EXPECT_FALSE(is_same_operation(a, other));
}

struct Deviation {
  const char* name;
  Letters step;
  std::string events;
};

class TraceFollowerDeviation : public testing::TestWithParam<Deviation> {};

TEST_P(TraceFollowerDeviation, CostsNoMoreThanItself) {
  TraceFollower follower;
  run_step(follower, "abcdefghij");
  run_step(follower, "abcdefghij");
  EXPECT_EQ(run_step(follower, GetParam().step), GetParam().events);
  // The next one is not affected, and the same deviation is known when it comes again.
  EXPECT_EQ(run_step(follower, "abcdefghij"), "..........");
  const std::string again = run_step(follower, GetParam().step);
  EXPECT_EQ(again.find_first_of("?*"), std::string::npos) << again;
}

INSTANTIATE_TEST_SUITE_P(All, TraceFollowerDeviation,
                         testing::Values(Deviation{"inserted", "abcXdefghij", "...?*......"},
                                         Deviation{"inserted_two", "abcXYdefghij", "...??*......"},
                                         Deviation{"skipped", "abcefghij", "...*....."},
                                         Deviation{"skipped_four", "abchij", "...*.."},
                                         Deviation{"skipped_many", "abij", "..?*"},
                                         Deviation{"replaced", "abcXefghij", "...?*....."},
                                         Deviation{"replaced_two", "abcXYfghij", "...??*...."},
                                         Deviation{"went_back", "abcdefbcdefghij",
                                                   "......?*......."},
                                         Deviation{"ended_early", "abcde", "....."},
                                         Deviation{"longer", "abcdefghijXY", "..........??"},
                                         Deviation{"another_begin", "Xabcdefghij", "?*........."}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(TraceFollower, ATraceThatBeginsTheSameIsTakenAtOnce) {
  TraceFollower follower;
  run_step(follower, "abcdef");
  EXPECT_EQ(run_step(follower, "abcxyz"), "...???");
  EXPECT_EQ(run_step(follower, "abcdef").find('?'), std::string::npos);
  EXPECT_EQ(run_step(follower, "abcxyz"), "...>..");
  EXPECT_EQ(follower.remembered(), 2U);
}

TEST(TraceFollower, AStepThatOftenFollowsIsExpected) {
  TraceFollower follower;
  // Three micro-batches, the last with the update, and now and then an evaluation.
  const std::vector<Letters> cycle = {"abcd", "abcd", "abcdu", "vwxyz"};
  for (int round = 0; round < 4; ++round) {
    for (const Letters& step : cycle) {
      run_step(follower, step);
    }
  }
  for (int round = 0; round < 3; ++round) {
    for (const Letters& step : cycle) {
      EXPECT_EQ(run_step(follower, step), std::string(step.size(), '.'));
    }
  }
  EXPECT_EQ(follower.remembered(), 3U);
}

TEST(TraceFollower, WhatCameOnceIsForgottenFirst) {
  TraceFollower follower(3);
  run_step(follower, "abcd");
  run_step(follower, "abcd");
  run_step(follower, "vwxyz");
  run_step(follower, "vwxyz");
  FollowEnd end;
  for (char letter = 'A'; letter < 'H'; ++letter) {
    run_step(follower, Letters("ab") + letter + "cd", &end);
    EXPECT_EQ(end.forgotten.has_value(), letter != 'A');
    EXPECT_EQ(follower.remembered(), 3U);
  }
  for (const char* usual : {"abcd", "vwxyz"}) {
    EXPECT_EQ(run_step(follower, usual).find('?'), std::string::npos) << usual;
  }
}

TEST(TraceFollower, RepeatedStretchesAreRejoinedWhereTheyWereLeft) {
  TraceFollower follower;
  // Four times the same operations: X comes in the second.
  run_step(follower, "abcdabcdabcdabcdu");
  EXPECT_EQ(run_step(follower, "abcdabXcdabcdabcdu"), "......?*..........");
  // One pass less: what follows tells.
  EXPECT_EQ(run_step(follower, "abcdabcdabcdu").find('?'), std::string::npos);
}

TEST(TraceFollower, AStepThatWentWrongIsNotRemembered) {
  TraceFollower follower;
  run_step(follower, "abcd");
  follower.begin();
  follower.announce(operation('a'));
  follower.give_up();
  EXPECT_EQ(follower.expected(), std::nullopt);
  EXPECT_TRUE(follower.outlook().has_value());
  EXPECT_EQ(follower.announce(operation('b')).event, FollowEvent::lost);
  EXPECT_EQ(follower.end({}).trace, std::nullopt);
  EXPECT_EQ(run_step(follower, "abcd"), "....");
}

/// The rule of the header, by trying every place of every trace.
class BruteForce {
 public:
  explicit BruteForce(size_t most) : most_(most) {}

  /// Traces in order of their last step, the last one last; with the times they came.
  struct Known {
    Letters letters;
    int times = 0;
  };

  std::string run(const Letters& step, std::optional<Letters> expected_first) {
    std::optional<std::pair<Letters, size_t>> expected;
    if (expected_first) {
      expected = {*expected_first, 0};
    }
    std::optional<std::pair<Letters, size_t>> left;
    size_t since = 0;
    std::string events;
    for (size_t n = 1; n <= step.size(); ++n) {
      const Letters ran = step.substr(0, n);
      if (expected && expected->second < expected->first.size() &&
          expected->first[expected->second] == ran.back()) {
        ++expected->second;
        events += '.';
        continue;
      }
      char event = '?';
      std::optional<std::pair<Letters, size_t>> next;
      if (expected) {
        left = expected;
        since = 0;
        for (const Known& known : known_) {
          if (known.letters.substr(0, n) == ran) {
            next = {known.letters, n};
            event = '>';
          }
        }
      }
      ++since;
      if (!next && (next = rejoin(ran, left, since))) {
        event = '*';
      }
      expected = next;
      events += event;
    }
    remember(step);
    return events;
  }

 private:
  std::optional<std::pair<Letters, size_t>> rejoin(
      const Letters& ran, const std::optional<std::pair<Letters, size_t>>& left, size_t since) {
    // Near the place that was left, the nearest.
    if (left) {
      for (size_t d = 0; d < since + TraceFollower::kNear; ++d) {
        if (left->second + d < left->first.size() && left->first[left->second + d] == ran.back()) {
          return std::pair(left->first, left->second + d + 1);
        }
      }
    }
    // The longest match; then the trace that was left, there the nearest place; then the latest.
    std::optional<std::pair<Letters, size_t>> best;
    std::vector<int64_t> best_rank;
    for (size_t k = 0; k < known_.size(); ++k) {
      const Letters& letters = known_[k].letters;
      for (size_t end = 1; end <= letters.size(); ++end) {
        size_t match = 0;
        while (match < std::min({end, ran.size(), TraceFollower::kLongestMatch}) &&
               letters[end - 1 - match] == ran[ran.size() - 1 - match]) {
          ++match;
        }
        const bool same = left && left->first == letters;
        const auto place = static_cast<int64_t>(end) - 1;
        const int64_t distance = same ? std::abs(place - static_cast<int64_t>(left->second)) : 0;
        const std::vector<int64_t> rank = {static_cast<int64_t>(match), same ? 1 : 0, -distance,
                                           static_cast<int64_t>(k), place};
        if (match >= TraceFollower::kEnough && (!best || rank > best_rank)) {
          best = {letters, end};
          best_rank = rank;
        }
      }
    }
    return best;
  }

  void remember(const Letters& step) {
    Known known{step, 0};
    for (size_t k = 0; k < known_.size(); ++k) {
      if (known_[k].letters == step) {
        known = known_[k];
        known_.erase(known_.begin() + static_cast<ptrdiff_t>(k));
        break;
      }
    }
    if (known.times == 0 && known_.size() == most_) {
      size_t victim = 0;
      while (victim < known_.size() && known_[victim].times > 1) {
        ++victim;
      }
      known_.erase(known_.begin() + static_cast<ptrdiff_t>(victim == known_.size() ? 0 : victim));
    }
    ++known.times;
    known_.push_back(known);
  }

  size_t most_;
  std::vector<Known> known_;
};

Letters mutated(Random& random, Letters step) {
  const uint64_t changes = random.below(4);
  for (uint64_t c = 0; c < changes; ++c) {
    const size_t at = random.below(step.size());
    const char letter = static_cast<char>('a' + random.below(8));
    switch (random.below(5)) {
      case 0:
        step.insert(at, 1, letter);
        break;
      case 1:
        step.erase(at, 1 + random.below(3));
        break;
      case 2:
        step[at] = letter;
        break;
      case 3:
        step.resize(at + 1);
        break;
      default:
        step += step.substr(at);
        break;
    }
    if (step.empty()) {
      step = "a";
    }
  }
  return step;
}

TEST(TraceFollower, EventsAreThoseOfTryingEveryPlace) {
  int rejoined = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed, 31);
    std::vector<Letters> usual;
    for (int i = 0; i < 3; ++i) {
      Letters step;
      // Few letters: the same stretches come again and again.
      const uint64_t letters = 2 + random.below(20);
      for (uint64_t n = 3 + random.below(20); n > 0; --n) {
        step += static_cast<char>('a' + random.below(letters));
      }
      usual.push_back(step);
    }
    const size_t most = 1 + random.below(5);
    TraceFollower follower(most);
    BruteForce reference(most);
    for (int n = 0; n < 20; ++n) {
      const Letters step = mutated(random, usual[random.below(usual.size())]);
      // Which one is expected first is the follower's choice; that is tested above.
      std::optional<Letters> expected;
      if (const auto place = follower.begin()) {
        expected.emplace();
        for (const Operation& known : follower.trace(place->trace).operations) {
          *expected += known.name;
        }
      }
      follower.end({});
      const std::string events = run_step(follower, step);
      ASSERT_EQ(events, reference.run(step, expected)) << step;
      rejoined += events.find('*') != std::string::npos ? 1 : 0;
      ASSERT_LE(follower.remembered(), most);
    }
  }
  EXPECT_GT(rejoined, 1000);
}

}  // namespace
}  // namespace headrace::scheduler
