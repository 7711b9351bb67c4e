#include "engine/trace_recording.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "engine/run_plan.h"
#include "model/presets.h"
#include "support/temporary_folder.h"

namespace headrace::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

EngineOptions options_of(const std::string& policy, Tier optimizer) {
  EngineOptions options;
  options.dtype = DType::bf16;
  options.shape = {2, 64};
  options.policy = policy;
  options.memory.device_memory = kMiB * 16;
  options.memory.host_memory = kMiB * 96;
  options.memory.has_nvme = true;
  options.memory.nvme_budget = kGiB;
  options.memory.nvme_path = "(none)";
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = optimizer;
  options.memory.host_activations = true;
  options.memory.micro_batches = 2;
  return options;
}

scheduler::SavedTrace record(const EngineOptions& options, RecordedStep step, int rounds) {
  return record_trace(model::preset_config("tiny"), options, step, rounds);
}

TEST(RecordTrace, EveryStepAndPolicyIsSoundAndKept) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/step.trace";
  for (const char* policy : {"optimal", "liveness", "lru"}) {
    for (const RecordedStep step :
         {RecordedStep::steady, RecordedStep::training, RecordedStep::speculative,
          RecordedStep::redo, RecordedStep::evaluation}) {
      const scheduler::SavedTrace trace = record(options_of(policy, Tier::nvme), step, 3);
      EXPECT_EQ(trace.policy, policy);
      ASSERT_EQ(trace.rounds.size(), 2U);
      EXPECT_EQ(trace.rounds[0].number, 1);
      EXPECT_EQ(trace.rounds[1].number, 3);
      for (const scheduler::SavedRound& round : trace.rounds) {
        EXPECT_THAT(scheduler::check_schedule(trace.input(round), round.schedule), IsEmpty());
      }
      save_trace(trace, path);
      EXPECT_EQ(load_trace(path), trace);
    }
  }
}

TEST(RecordTrace, ARoundBeginsWithWhatTheOneBeforeLeft) {
  const EngineOptions options = options_of("lru", Tier::nvme);
  const auto two = record(options, RecordedStep::training, 2);
  EXPECT_EQ(two.rounds[1].schedule.initial, two.rounds[0].schedule.final);
  const auto three = record(options, RecordedStep::training, 3);
  EXPECT_EQ(three.rounds[0], two.rounds[0]);
  EXPECT_EQ(three.rounds[1].schedule.initial, two.rounds[1].schedule.final);
  EXPECT_EQ(record(options, RecordedStep::training, 1).rounds.size(), 1U);
}

TEST(RecordTrace, ARedoBeginsWithoutWhatTheSpeculativeStepChanged) {
  const auto redo = record(options_of("optimal", Tier::nvme), RecordedStep::redo, 2);
  const auto speculative = record(options_of("optimal", Tier::nvme), RecordedStep::speculative, 1);
  for (const scheduler::Residency& copy : redo.rounds[0].schedule.initial) {
    EXPECT_NE(redo.objects[index_of(copy.object)].home, Tier::nvme);
  }
  size_t at_home = 0;
  for (const scheduler::Residency& copy : speculative.rounds[0].schedule.final) {
    at_home += speculative.objects[index_of(copy.object)].home != Tier::nvme ? 1 : 0;
  }
  EXPECT_EQ(redo.rounds[0].schedule.initial.size(), at_home);
}

TEST(RecordTrace, AStepThatThePlanLacksIsRefused) {
  EngineOptions options = options_of("optimal", Tier::host);
  options.memory.host_memory = kMiB * 256;
  EXPECT_EQ(record(options, RecordedStep::steady, 1).step, "training");
  for (const RecordedStep step : {RecordedStep::speculative, RecordedStep::redo}) {
    try {
      record(options, step, 1);
      FAIL();
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("headrace.optimizer_overlap"));
    }
  }
}

TEST(TraceFile, PathsThatDoNotWorkAreNamed) {
  const test::TemporaryFolder folder;
  const auto trace = record(options_of("lru", Tier::nvme), RecordedStep::evaluation, 1);
  try {
    save_trace(trace, folder.path() + "/missing/step.trace");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing"));
  }
  EXPECT_THROW(load_trace(folder.path() + "/missing"), InputError);
  const std::string huge = folder.path() + "/huge";
  std::ofstream(huge).close();
  std::filesystem::resize_file(huge, uint64_t{1} << 40);
  EXPECT_THROW(load_trace(huge), InputError);
}

}  // namespace
}  // namespace headrace::engine
