// Steps of a small network that are announced operation by operation: when objects are fetched
// ahead, and what a deviation costs.
#include "engine/announced_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "base/error.h"
#include "support/faulty_backend.h"
#include "tests/engine/announced_steps.h"

namespace headrace::engine {
namespace {

using scheduler::Access;
using scheduler::Lane;
using scheduler::Operation;
using test::AnnouncedSteps;
using test::kSlot;
using test::Operations;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr uint32_t kLayers = 8;

/// Weights at home on nvme and an activation behind every layer; the budgets hold few of them.
class AnnouncedNetwork : public testing::Test {
 protected:
  AnnouncedNetwork()
      : steps_(objects(), Bytes(4 * kSlot), Bytes(5 * kSlot),
               test::io_engine(aio::BackendKind::thread_pool)) {
    steps_.run(load());
  }

  static Operations load() {
    Operations step;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      step.push_back(operation("load", layer, {{weights(layer), Tier::host, Access::write, false}},
                               Lane::cpu_optimizer));
    }
    return step;
  }
  static std::vector<scheduler::ObjectFacts> objects() {
    std::vector<scheduler::ObjectFacts> objects;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      objects.push_back({"weights." + std::to_string(layer), Bytes(kSlot), Tier::nvme, Tier::nvme});
    }
    for (uint32_t layer = 0; layer <= kLayers; ++layer) {
      objects.push_back(
          {"activation." + std::to_string(layer), Bytes(kSlot), Tier::nvme, std::nullopt});
    }
    return objects;
  }
  static ObjectId weights(uint32_t layer) { return ObjectId{layer}; }
  static ObjectId activation(uint32_t layer) { return ObjectId{kLayers + layer}; }

  static Operation operation(const std::string& name, uint32_t layer,
                             std::vector<scheduler::Use> uses, Lane lane = Lane::compute) {
    return {name + "." + std::to_string(layer), lane, std::move(uses), 1e-4};
  }
  static Operation forward(uint32_t layer, const std::string& name = "forward") {
    return operation(name, layer,
                     {{weights(layer), Tier::device, Access::read, false},
                      {activation(layer), Tier::device, Access::read, false},
                      {activation(layer + 1), Tier::device, Access::write, false}});
  }
  static Operation backward(uint32_t layer) {
    return operation("backward", layer,
                     {{activation(layer + 1), Tier::device, Access::read, true},
                      {weights(layer), Tier::device, Access::update, false}});
  }
  static Operation update(uint32_t layer) {
    return operation("update", layer, {{weights(layer), Tier::host, Access::update, false}},
                     Lane::cpu_optimizer);
  }
  static Operation embed() {
    return operation("embed", 0, {{activation(0), Tier::device, Access::write, false}});
  }
  static Operation probe(uint32_t layer) {
    return operation("probe", layer, {{weights(layer), Tier::device, Access::read, false}});
  }

  static Operations pass() {
    Operations step = {embed()};
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      step.push_back(forward(layer));
    }
    for (uint32_t layer = kLayers; layer-- > 0;) {
      step.push_back(backward(layer));
    }
    return step;
  }
  static Operations training() {
    Operations step = pass();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      step.push_back(update(layer));
    }
    return step;
  }
  static Operations evaluation() {
    Operations step = {embed()};
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      step.push_back(forward(layer, "evaluate"));
    }
    return step;
  }

  void expect_followed(const AnnouncedReport& report) {
    EXPECT_EQ(report.on_demand, 0U);
    EXPECT_EQ(report.demand_fetches, 0U);
    EXPECT_EQ(report.deviations, 0U);
    EXPECT_EQ(report.parts, 1U);
    EXPECT_TRUE(report.is_remembered);
  }

  AnnouncedSteps steps_;
};

TEST_F(AnnouncedNetwork, FirstStepIsOnDemandAndTheNextIsFetchedAhead) {
  const AnnouncedReport first = steps_.run(pass());
  EXPECT_EQ(first.operations, pass().size());
  EXPECT_EQ(first.on_demand, pass().size());
  EXPECT_GE(first.demand_fetches, 2 * kLayers);
  EXPECT_TRUE(first.is_remembered);
  steps_.run(pass());
  for (int n = 0; n < 4; ++n) {
    const AnnouncedReport report = steps_.run(pass());
    expect_followed(report);
    EXPECT_GT(report.traffic.nvme_read, 0);
  }
}

TEST_F(AnnouncedNetwork, ModeSaysHowTheStepIsServed) {
  AnnouncedStep& step = steps_.step();
  step.begin();
  steps_.announce(embed());
  // The load is remembered, and this is no load.
  EXPECT_EQ(step.mode(), TraceMode::invalid);
  steps_.end();
  steps_.run(pass());
  steps_.run(pass());
  step.begin();
  EXPECT_EQ(step.mode(), TraceMode::complete);
  steps_.announce(embed());
  EXPECT_EQ(step.mode(), TraceMode::complete);
  steps_.announce(probe(1));
  EXPECT_EQ(step.mode(), TraceMode::invalid);
  steps_.announce(forward(0));
  EXPECT_EQ(step.mode(), TraceMode::complete);
  steps_.end();
  AnnouncedSteps fresh(objects(), Bytes(4 * kSlot), Bytes(5 * kSlot),
                       test::io_engine(aio::BackendKind::thread_pool));
  fresh.step().begin();
  EXPECT_EQ(fresh.step().mode(), TraceMode::record);
}

struct Deviation {
  const char* name;
  /// Changes the step of operations embed, forward 0 to 7 (at 1 to 8), backward 7 to 0 (at 9).
  std::function<void(Operations&)> change;
  size_t on_demand;   ///< operations at most
  size_t deviations;  ///< exactly
};

class AnnouncedDeviation : public AnnouncedNetwork,
                           public testing::WithParamInterface<Deviation> {};

TEST_P(AnnouncedDeviation, DelaysNoMoreThanItself) {
  for (int n = 0; n < 3; ++n) {
    steps_.run(pass());
  }
  Operations other = pass();
  GetParam().change(other);
  const AnnouncedReport report = steps_.run(other);
  EXPECT_LE(report.on_demand, GetParam().on_demand);
  EXPECT_EQ(report.deviations, GetParam().deviations);
  // Three objects per operation, two ways each; of those on demand, and of one where it rejoined.
  EXPECT_LE(report.demand_fetches, 6 * (report.on_demand + report.deviations));
  expect_followed(steps_.run(pass()));
  // Now that is a remembered step too: what was not foreseen is one operation, at the fork.
  const AnnouncedReport again = steps_.run(other);
  EXPECT_EQ(again.on_demand, 0U);
  EXPECT_LE(again.deviations, 1U);
  EXPECT_LE(again.demand_fetches, 6U);
  expect_followed(steps_.run(pass()));
}

INSTANTIATE_TEST_SUITE_P(
    All, AnnouncedDeviation,
    testing::Values(
        Deviation{"inserted",
                  [](Operations& step) {
                    step.insert(step.begin() + 5,
                                {"probe",
                                 Lane::compute,
                                 {{ObjectId{7}, Tier::device, Access::read, false}},
                                 1e-4});
                  },
                  1, 1},
        Deviation{"inserted_update",
                  [](Operations& step) {
                    step.insert(step.begin() + 5,
                                {"change",
                                 Lane::cpu_optimizer,
                                 {{ObjectId{6}, Tier::host, Access::update, false}},
                                 1e-4});
                  },
                  1, 1},
        // Two layers less: the activation behind them is written by none; one more takes it over.
        Deviation{"skipped",
                  [](Operations& step) { step.erase(step.begin() + 11, step.begin() + 13); }, 0, 1},
        Deviation{"replaced", [](Operations& step) { step[4].name = "other"; }, 1, 1},
        Deviation{"ended_early", [](Operations& step) { step.resize(9); }, 0, 0},
        Deviation{"longer",
                  [](Operations& step) {
                    for (uint32_t layer = 0; layer < 3; ++layer) {
                      step.push_back({"tail." + std::to_string(layer),
                                      Lane::cpu_optimizer,
                                      {{ObjectId{layer}, Tier::host, Access::update, false}},
                                      1e-4});
                    }
                  },
                  3, 1}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(AnnouncedNetwork, ThreeKindsOfStepsTakeTurns) {
  const std::vector<Operations> cycle = {pass(), pass(), training(), evaluation()};
  for (int round = 0; round < 4; ++round) {
    for (const Operations& step : cycle) {
      steps_.run(step);
    }
  }
  for (const Operations& step : cycle) {
    expect_followed(steps_.run(step));
  }
  // In another order they are told apart by the first operation that differs.
  for (const Operations& step : {evaluation(), training(), evaluation(), pass(), training()}) {
    const AnnouncedReport report = steps_.run(step);
    EXPECT_EQ(report.on_demand, 0U);
    EXPECT_LE(report.deviations, 1U);
    EXPECT_LE(report.demand_fetches, 6U);
  }
}

TEST_F(AnnouncedNetwork, WarningsSayWhenAndWhy) {
  steps_.run(pass());
  steps_.run(pass());
  steps_.warnings().clear();
  steps_.run(pass());
  EXPECT_TRUE(steps_.warnings().empty());
  Operations other = pass();
  other.insert(other.begin() + 3, probe(7));
  steps_.run(other);
  ASSERT_EQ(steps_.warnings().size(), 3U);
  EXPECT_THAT(steps_.warnings()[0],
              AllOf(HasSubstr("announced step 5: "), HasSubstr("'probe.7' (number 3)"),
                    HasSubstr("'forward.2' (number 3 of 'step 2')")));
  EXPECT_THAT(steps_.warnings()[1], HasSubstr("on demand"));
  EXPECT_THAT(steps_.warnings()[2], HasSubstr("goes on from operation 'forward.2'"));
  Operations shorter = pass();
  shorter.resize(4);
  steps_.run(shorter);
  EXPECT_THAT(steps_.warnings(),
              Contains(AllOf(HasSubstr("ended after 4 operations"), HasSubstr("'forward.3'"))));
}

TEST_F(AnnouncedNetwork, AnErrorInABodyLeavesEverythingUsable) {
  steps_.run(pass());
  steps_.run(pass());
  AnnouncedStep& step = steps_.step();
  step.begin();
  const Operations operations = pass();
  for (size_t i = 0; i < operations.size(); ++i) {
    if (i == 4) {
      EXPECT_THROW(step.run(probe(6), [](UseBytes) { throw InputError("bad operation"); }),
                   InputError);
    }
    steps_.announce(operations[i]);
  }
  const AnnouncedReport report = steps_.end();
  EXPECT_FALSE(report.is_remembered);
  expect_followed(steps_.run(pass()));
}

TEST_F(AnnouncedNetwork, AnErrorOfTheCpuComesWithALaterCall) {
  steps_.run(pass());
  AnnouncedStep& step = steps_.step();
  step.begin();
  steps_.announce(embed());
  Operation bad = update(3);
  bad.uses[0].access = Access::read;
  std::promise<void> returned;  // so that the error does not come with run() itself
  step.run(bad, [&](UseBytes) {
    returned.get_future().wait();
    throw InputError("bad operation");
  });
  returned.set_value();
  EXPECT_THROW(step.end(), InputError);
  steps_.check();
  const AnnouncedReport report = steps_.run(pass());
  EXPECT_EQ(report.on_demand, 0U);
}

TEST_F(AnnouncedNetwork, AnImpossibleOperationIsRefusedByName) {
  steps_.run(pass());
  steps_.run(pass());
  AnnouncedStep& step = steps_.step();
  step.begin();
  steps_.announce(embed());
  const auto message = [&](const Operation& operation) {
    try {
      step.run(operation, [](UseBytes) {});
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(message(backward(5)),
              AllOf(HasSubstr("'backward.5'"), HasSubstr("'activation.6'"), HasSubstr("written")));
  Operation unknown = probe(0);
  unknown.uses[0].object = ObjectId{99};
  EXPECT_THAT(message(unknown), HasSubstr("object 99 is unknown"));
  // It did not take place: the step goes on as expected.
  const Operations operations = pass();
  for (size_t i = 1; i < operations.size(); ++i) {
    steps_.announce(operations[i]);
  }
  expect_followed(steps_.end());
}

TEST_F(AnnouncedNetwork, AnOperationThatDoesNotFitIsRefusedByName) {
  steps_.run(pass());
  steps_.run(pass());
  AnnouncedStep& step = steps_.step();
  step.begin();
  steps_.announce(embed());
  Operation large{"large", Lane::compute, {}, 0};
  for (uint32_t layer = 0; layer < 5; ++layer) {
    large.uses.push_back({weights(layer), Tier::device, Access::read, false});
  }
  try {
    step.run(large, [](UseBytes) {});
    FAIL() << "five slots fit into four";
  } catch (const CapacityError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'large'"), HasSubstr("device")));
  }
  const Operations operations = pass();
  for (size_t i = 1; i < operations.size(); ++i) {
    steps_.announce(operations[i]);
  }
  EXPECT_FALSE(steps_.end().is_remembered);
  expect_followed(steps_.run(pass()));
}

/// Each transfer of a step fails once: the operation that needed it is announced again, or values
/// go home at the next end.
TEST_F(AnnouncedNetwork, AFailedTransferCostsNoValue) {
  const auto plan = std::make_shared<headrace::test::FaultPlan>();
  aio::IoEngineOptions options;
  options.backend = aio::BackendKind::thread_pool;
  AnnouncedSteps steps(objects(), Bytes(4 * kSlot), Bytes(5 * kSlot),
                       headrace::test::make_faulty_engine(options, plan));
  steps.run(load());
  steps.run(pass());
  int failed_operations = 0;
  int failed_ends = 0;
  for (int n = 0; n < 24; ++n) {
    SCOPED_TRACE(n);
    const auto kind = n % 2 == 0 ? aio::IoOperation::read : aio::IoOperation::write;
    plan->hit(kind, {headrace::test::PartFault::fail, EIO}, 1, n / 2);
    steps.step().begin();
    for (const Operation& operation : pass()) {
      try {
        steps.announce(operation);
      } catch (const IoError&) {
        ++failed_operations;
        steps.announce(operation);
      }
    }
    try {
      steps.step().end();
    } catch (const IoError&) {
      ++failed_ends;
    }
    plan->clear();
    steps.run(pass());
  }
  EXPECT_GE(failed_operations, 8);
  EXPECT_GE(failed_operations + failed_ends, 16);
}

TEST_F(AnnouncedNetwork, TheBytesAreTheClientsBetweenEnterAndLeave) {
  AnnouncedStep& step = steps_.step();
  for (int n = 0; n < 3; ++n) {
    step.begin();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto bytes = step.enter(probe(layer));
      ASSERT_EQ(bytes.size(), 1U);
      EXPECT_EQ(bytes[0].size(), static_cast<size_t>(kSlot));
      EXPECT_THROW(step.enter(probe(layer)), InternalError);
      EXPECT_THROW(step.end(), InternalError);
      step.leave(Completion::done());
    }
    const AnnouncedReport report = step.end();
    EXPECT_EQ(report.on_demand, n == 0 ? kLayers : 0U);
    steps_.check();
  }
  EXPECT_THROW(step.end(), InternalError);
}

TEST_F(AnnouncedNetwork, AStepThatIsNeverEndedIsStopped) {
  for (int n = 0; n < 2; ++n) {
    steps_.run(pass());
  }
  steps_.step().begin();
  steps_.announce(embed());
  steps_.announce(forward(0));
  steps_.use(steps_.options());  // the old one goes, with transfers in flight
  steps_.run(pass());
}

}  // namespace
}  // namespace headrace::engine
