// Training over a drive that misbehaves: the numbers are those of a good drive, or the run ends
// with an error that says where; never other numbers.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "e2e/training_harness.h"
#include "model/model_config.h"
#include "support/faulty_backend.h"

namespace headrace {
namespace {

using test::FaultChoice;
using test::FaultPlan;
using test::PartFault;

class TrainingFaults : public ::testing::TestWithParam<aio::BackendKind> {
 protected:
  TrainingFaults() {
    model::ModelConfig config;
    config.family = model::Family::llama;
    config.vocab_size = 67;
    config.hidden_size = 64;
    config.intermediate_size = 96;
    config.layers = 2;
    config.heads = 2;
    config.kv_heads = 2;
    config.head_dim = 32;
    config.max_positions = 32;
    model::init_model(config, DType::f32, 3, folder_.path());
    settings_.model_folder = folder_.path();
    settings_.dtype = DType::bf16;
    settings_.shape = {1, 16};
    settings_.steps = test::random_steps(5, 4, 1, settings_.shape, 67);
    settings_.learning_rates = {1e-3, 1e-3, 1e-3, 1e-3};
    options_.memory.host_memory = kMiB * 8;
    options_.memory.offload_param = Tier::nvme;
    options_.memory.offload_optimizer = Tier::nvme;
    options_.io.backend = GetParam();
    options_.io.block_size = kKiB * 64;
  }
  void SetUp() override {
    if (test::make_faulty_engine(options_.io, std::make_shared<FaultPlan>()) == nullptr) {
      GTEST_SKIP() << "io_uring is refused here";
    }
  }
  test::Curve train(const std::shared_ptr<FaultPlan>& plan) {
    engine::EngineOptions options = options_;
    options.make_io = [plan](const aio::IoEngineOptions& io) {
      return test::make_faulty_engine(io, plan);
    };
    return train_curve(settings_, options);
  }
  /// One part in `rate` meets a fault, by the seed.
  static std::shared_ptr<FaultPlan> random_faults(uint64_t seed, uint64_t rate) {
    auto plan = std::make_shared<FaultPlan>();
    plan->set([random = Random(seed, 3), rate](const aio::PartRequest&) mutable {
      constexpr FaultChoice kChoices[] = {
          {PartFault::cut_short},   {PartFault::fail, EIO},    {PartFault::fail, EAGAIN},
          {PartFault::fail, EINTR}, {PartFault::fail, ENOSPC}, {PartFault::flip_bit},
          {PartFault::tear},        {PartFault::misdirect},    {PartFault::lose}};
      return random.below(rate) == 0 ? kChoices[random.below(std::size(kChoices))] : FaultChoice{};
    });
    return plan;
  }

  test::TemporaryFolder folder_;
  test::CurveSettings settings_;
  engine::EngineOptions options_;
};

TEST_P(TrainingFaults, GiveTheRightNumbersOrAnError) {
  const test::Curve right = train(std::make_shared<FaultPlan>());
  int ended_well = 0;
  int failed = 0;
  int survived_faults = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const auto plan = random_faults(seed, seed % 2 == 0 ? 400 : 60);
    try {
      const test::Curve curve = train(plan);
      ASSERT_TRUE(curve == right) << "other numbers, seed " << seed;
      ++ended_well;
      survived_faults += plan->hits();
    } catch (const IoError& error) {
      ++failed;
      EXPECT_NE(error.where().path, "") << error.what();
      EXPECT_GE(error.where().offset, 0) << error.what();
      EXPECT_GE(error.where().expected_bytes, 0) << error.what();
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(ended_well, 0);
  EXPECT_GT(survived_faults, 0) << "some faults are recovered from";
}

/// What can be recovered from is recovered from, however often it happens.
TEST_P(TrainingFaults, InterruptionsAndShortTransfersCostOnlyTime) {
  const test::Curve right = train(std::make_shared<FaultPlan>());
  const auto plan = std::make_shared<FaultPlan>();
  plan->set([count = 0](const aio::PartRequest&) mutable {
    switch (++count % 5) {
      case 0:
        return FaultChoice{PartFault::fail, EINTR};
      case 2:
        return FaultChoice{PartFault::fail, EAGAIN};
      default:
        return FaultChoice{};
    }
  });
  EXPECT_TRUE(train(plan) == right);
  EXPECT_GT(plan->hits(), 20);
}

INSTANTIATE_TEST_SUITE_P(Backends, TrainingFaults,
                         ::testing::Values(aio::BackendKind::io_uring,
                                           aio::BackendKind::thread_pool),
                         [](const auto& backend) {
                           return backend.param == aio::BackendKind::io_uring ? "Uring"
                                                                              : "ThreadPool";
                         });

}  // namespace
}  // namespace headrace
