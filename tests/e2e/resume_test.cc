// A run that was stopped and goes on has the numbers of one that was never stopped, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "e2e/resume_fixture.h"
#include "engine/export.h"
#include "engine/repair.h"
#include "engine/run_access.h"
#include "engine/run_state.h"
#include "tiers/catalog.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Case;
using test::kSteps;
using test::Result;
using test::ResumeTest;
using test::small_model;
using test::TiledResumeTest;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ResumeMatrix : public ResumeTest, public ::testing::WithParamInterface<Case> {
 protected:
  void expect_same_bits(const Case& each) const;
};

void ResumeMatrix::expect_same_bits(const Case& each) const {
  const json config = config_of(each);
  train(job("whole"), config);
  const Result whole = result("whole");
  ASSERT_EQ(whole.curve.size(), 9U);  // 6 steps, 3 validations
  EXPECT_EQ(whole.curve[0].at("skipped"), each.dtype == "fp16");

  // Other budgets and other shards for the rest, and once more the first ones.
  json tight = config;
  tight["headrace"]["host_memory"] = "8MiB";
  tight["zero_optimization"]["sub_group_size"] = 65536;
  EXPECT_TRUE(train(job("parts"), config, 2).interrupted);
  EXPECT_EQ(train(job("parts"), tight, 4).resumed_from, 2);
  const engine::TrainSummary last = train(job("parts"), config);
  EXPECT_EQ(last.resumed_from, 4);
  EXPECT_FALSE(last.interrupted);
  const Result parts = result("parts");
  // A validation that was due when the run was stopped comes when it goes on.
  EXPECT_THAT(parts.curve, ::testing::UnorderedElementsAreArray(whole.curve));
  EXPECT_TRUE(parts.weights == whole.weights);
}

TEST_P(ResumeMatrix, ChangesNoBit) {
  expect_same_bits(GetParam());
}

/// Every combination; run with the label slow.
class ResumeMatrixSlow : public ResumeMatrix {};
TEST_P(ResumeMatrixSlow, ChangesNoBit) {
  expect_same_bits(GetParam());
}

std::vector<Case> default_cases() {
  return {{"nvme", 1, 1.0, "bf16", "step"},       {"nvme", 4, 0.0, "fp32", "in_place"},
          {"nvme", 1, 0.0, "fp16", "step"},       {"nvme", 4, 1.0, "bf16", "in_place"},
          {"cpu", 1, 1.0, "bf16", "step"},        {"cpu", 4, 0.0, "fp16", "step"},
          {"cpu", 1, 0.0, "fp32", "step"},        {"mixed", 4, 1.0, "fp16", "step"},
          {"mixed", 1, 1.0, "bf16", "step"},      {"mixed", 1, 0.0, "fp32", "in_place"},
          {"nvme", 4, 1.0, "bf16", "step", true}, {"cpu", 1, 0.0, "fp16", "step", true}};
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* offload : {"nvme", "cpu", "mixed"}) {
    for (const int64_t accumulation : {1, 4}) {
      for (const double clip : {1.0, 0.0}) {
        for (const char* dtype : {"fp32", "bf16", "fp16"}) {
          for (const char* durability : {"step", "in_place"}) {
            cases.push_back({offload, accumulation, clip, dtype, durability});
          }
        }
      }
    }
  }
  return cases;
}

const auto kCaseName = [](const auto& info) { return info.param.name(); };
INSTANTIATE_TEST_SUITE_P(Pairs, ResumeMatrix, ::testing::ValuesIn(default_cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(All, ResumeMatrixSlow, ::testing::ValuesIn(all_cases()), kCaseName);

TEST_F(ResumeTest, FromNvmeToMemoryAndBack) {
  const json nvme = config_of({});
  const json cpu = config_of({"cpu"});
  train(job("whole"), nvme);
  train(job("parts"), nvme, 1);
  EXPECT_EQ(train(job("parts"), cpu, 3).resumed_from, 1);
  EXPECT_EQ(train(job("parts"), config_of({"mixed"}), 4).resumed_from, 3);
  EXPECT_EQ(train(job("parts"), nvme).resumed_from, 4);
  EXPECT_TRUE(result("parts").weights == result("whole").weights);
}

TEST_F(ResumeTest, ASplitMasterGoesOnAsAWholeOne) {
  json split = config_of({});
  json whole_master = split;
  whole_master["headrace"]["split_master"] = false;
  train(job("whole"), split);
  train(job("parts"), split, 2);
  train(job("parts"), whole_master, 4);
  train(job("parts"), split);
  EXPECT_TRUE(result("parts").weights == result("whole").weights);
}

/// A vocabulary of up to eight tiles where the device is small.
class TiledResume : public TiledResumeTest, public ::testing::WithParamInterface<bool> {
 protected:
  TiledResume() : TiledResumeTest(wide_model(), 128) {}

  static model::ModelConfig wide_model() {
    model::ModelConfig config = small_model();
    config.vocab_size = 8000;
    config.hidden_size = 64;
    config.layers = 1;
    config.tie_word_embeddings = GetParam();
    return config;
  }
};

TEST_P(TiledResume, GoesOnWithOtherTilesBitForBit) {
  for (const Case& each : {Case{"nvme", 1, 1.0, "bf16"}, Case{"cpu", 2, 0.0, "fp16"},
                           Case{"nvme", 1, 1.0, "bf16", "step", true}}) {
    SCOPED_TRACE(each.name());
    const json wide = config_with_device(each, kWholeDevice);
    const engine::MemoryPlan whole_matrices = plan_of(wide);
    EXPECT_EQ(whole_matrices.layout.vocab_tiles, 1);
    const int64_t least = whole_matrices.minimum_device.count();
    const json tight = config_with_device(each, least);
    EXPECT_EQ(plan_of(tight).layout.vocab_tiles, 8);
    const json between = config_with_device(each, least + 3 * 2 * 1024 * 64 * 2);
    EXPECT_GT(plan_of(between).layout.vocab_tiles, 1);
    EXPECT_LT(plan_of(between).layout.vocab_tiles, 8);
    const std::string whole = each.name() + "_whole";
    const std::string parts = each.name() + "_parts";
    train(job(whole), wide);
    train(job(parts), tight, 1);
    EXPECT_EQ(train(job(parts), wide, 2).resumed_from, 1);
    EXPECT_EQ(train(job(parts), between, 3).resumed_from, 2);
    EXPECT_EQ(train(job(parts), wide, 4).resumed_from, 3);
    EXPECT_EQ(train(job(parts), tight).resumed_from, 4);
    EXPECT_THAT(result(parts).curve, ::testing::UnorderedElementsAreArray(result(whole).curve));
    EXPECT_TRUE(result(parts).weights == result(whole).weights);
    const auto files = exported(parts);
    EXPECT_GT(files.size(), 30U);
    EXPECT_TRUE(files == exported(whole));
  }
}

TEST_P(TiledResume, AnImportGoesOnInTiles) {
  expect_an_import_goes_on();
}

TEST_P(TiledResume, WeightsOfEveryTileAreMadeAnewFromTheMaster) {
  json config = config_with_device({}, kWholeDevice);
  config["headrace"]["split_master"] = false;
  config["headrace"]["device_memory"] = plan_of(config).minimum_device.count();
  train(job("run", 2), config);
  const std::string directory = engine::open_run(folder_ / "run")->directories().front();
  int64_t damaged = 0;
  for (const auto& [name, object] : tiers::read_catalog(directory + "/catalog").objects) {
    if (name.ends_with(".weights")) {
      ASSERT_NO_FATAL_FAILURE(test::flip_bit(directory, object.extents.front(), 100));
      ++damaged;
    }
  }
  EXPECT_EQ(damaged, GetParam() ? 10 : 18) << "tiles, one block and the norm";
  const auto store = engine::open_run(folder_ / "run");
  const auto damage = store->verify([](Bytes, Bytes) {});
  EXPECT_EQ(static_cast<int64_t>(damage.size()), damaged);
  for (const tiers::Repair& repair : engine::repair_damage(*store, damage)) {
    EXPECT_TRUE(repair.is_repaired) << repair.text;
    EXPECT_THAT(repair.text, HasSubstr("made anew"));
  }
  EXPECT_TRUE(store->verify([](Bytes, Bytes) {}).empty());
}
INSTANTIATE_TEST_SUITE_P(Tied, TiledResume, ::testing::Bool());

TEST_F(ResumeTest, AShapeOfOtherElementsIsNotExported) {
  train(job("run", 1), config_of({}));
  const auto store = engine::open_run(folder_ / "run");
  proto::RunState state = engine::run_state_of(*store, std::nullopt);
  engine::ExportOptions options;
  options.output_folder = folder_ / "universal";
  uint64_t generation = store->generations().back().generation;
  for (const int64_t rows : {int64_t{1} << 62, int64_t{1}, int64_t{0}, int64_t{-1}}) {
    auto& module = *state.mutable_layout()->mutable_modules(0);
    module.mutable_parameters(0)->set_shape(0, rows);
    store->commit(++generation, {{engine::kRunStateKey, state.SerializeAsString()}});
    EXPECT_THROW(engine::export_universal(*store, options, [](int64_t, int64_t) {}), InputError);
  }
}

TEST_F(ResumeTest, GoesBeyondItsFirstEnd) {
  const json config = config_of({"cpu"});
  train(job("whole"), config);
  train(job("parts", 4), config);
  EXPECT_EQ(train(job("parts"), config).resumed_from, 4);
  EXPECT_TRUE(result("parts").weights == result("whole").weights);
  const Result done = result("parts");
  EXPECT_EQ(train(job("parts"), config).resumed_from, kSteps) << "done already";
  EXPECT_EQ(result("parts").curve, done.curve);
  EXPECT_TRUE(result("parts").weights == result("whole").weights);
}

TEST_F(ResumeTest, RefusesOtherNumbersUnlessToldTo) {
  const json config = config_of({});
  train(job("run"), config, 2);
  json changed = config;
  changed["optimizer"]["params"]["lr"] = 1e-4;
  changed["gradient_clipping"] = 0.5;
  EXPECT_THAT(refusal(job("run"), changed),
              AllOf(HasSubstr("optimizer.lr: 0.002 before, 0.0001 now"),
                    HasSubstr("gradient_clipping: 1 before, 0.5 now"),
                    HasSubstr("--allow-change gradient_clipping,optimizer.lr")));
  engine::TrainJob allowed = job("run");
  allowed.allowed_changes = {"gradient_clipping"};
  EXPECT_THAT(refusal(allowed, changed),
              AllOf(HasSubstr("optimizer.lr"), ::testing::Not(HasSubstr("gradient_clipping:"))));
  allowed.allowed_changes = {"gradient_clipping", "optimizer.lr"};
  EXPECT_EQ(train(allowed, changed).resumed_from, 2);
  EXPECT_EQ(refusal(job("run", 8), changed), "accepted") << "the change holds from then on";
  allowed.allowed_changes = {"optimizer.rl"};
  EXPECT_THAT(refusal(allowed, changed), HasSubstr("optimizer.rl"));

  for (const auto& [name, change] : std::map<std::string, std::function<void(engine::TrainJob&)>>{
           {"seq_len", [](engine::TrainJob& job) { job.seq = 16; }},
           {"data.shuffle", [](engine::TrainJob& job) { job.shuffle = false; }},
           {"data:", [&](engine::TrainJob& job) {
              fs::copy(job.data_path, folder_ / "other.bin");
              std::fstream file(folder_ / "other.bin", std::ios::in | std::ios::out);
              file.seekp(3000);
              file.put('\0');
              job.data_path = folder_ / "other.bin";
            }}}) {
    engine::TrainJob other = job("run");
    change(other);
    EXPECT_THAT(refusal(other, changed), HasSubstr(name));
  }
}

TEST_F(ResumeTest, NeverAutoMust) {
  const json config = config_of({});
  engine::TrainJob must = job("run");
  must.resume = engine::ResumeMode::must;
  EXPECT_THAT(refusal(must, config), AllOf(HasSubstr("--resume must"), HasSubstr("run")));
  const std::string first = train(job("run"), config, 2).run_directory;
  EXPECT_TRUE(fs::exists(first));
  EXPECT_EQ(train(must, config, 3).resumed_from, 2);
  engine::TrainJob never = job("run");
  never.resume = engine::ResumeMode::never;
  const engine::TrainSummary fresh = train(never, config, 2);
  EXPECT_EQ(fresh.resumed_from, 0);
  EXPECT_NE(fresh.run_directory, first);
  EXPECT_TRUE(fs::exists(first)) << "nothing is deleted that was not asked for";
  EXPECT_EQ(train(job("run"), config).run_directory, fresh.run_directory);
}

TEST_F(ResumeTest, FindsARunByItsName) {
  json config = config_of({});
  config["headrace"]["run_id"] = "mine";
  train(job("one"), config, 2);
  EXPECT_EQ(train(job("two"), config).resumed_from, 2);
  engine::TrainJob never = job("three");
  never.resume = engine::ResumeMode::never;
  EXPECT_THAT(refusal(never, config), HasSubstr("earlier run"));
}

TEST_F(ResumeTest, KeepsNothingWhereThatIsAsked) {
  json config = config_of({});
  config["headrace"]["keep_run"] = false;
  train(job("run"), config, 2);
  EXPECT_FALSE(fs::is_empty(folder_ / "nvme")) << "it was interrupted";
  EXPECT_EQ(train(job("run"), config).resumed_from, 2);
  EXPECT_TRUE(fs::is_empty(folder_ / "nvme"));
}

}  // namespace
}  // namespace headrace
