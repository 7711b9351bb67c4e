#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/engine/config/resolve_fixture.h"

namespace headrace::engine {
namespace {

using testing::Contains;
using testing::HasSubstr;

// ---- batch sizes -------------------------------------------------------------------------------

struct BatchCase {
  std::string text;
  int64_t ranks;
  int64_t train;
  int64_t micro;
  int64_t accumulation;
};

class ResolveBatches : public testing::TestWithParam<BatchCase> {};

TEST_P(ResolveBatches, FollowTheProductRule) {
  const BatchCase& c = GetParam();
  ResolveContext context;
  context.ranks = c.ranks;
  const BatchSettings batch = resolve_text(c.text, context).settings.batch;
  EXPECT_EQ(batch.train, c.train);
  EXPECT_EQ(batch.micro, c.micro);
  EXPECT_EQ(batch.accumulation_steps, c.accumulation);
}

constexpr const char* kTbMbGas =
    R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 4})";

INSTANTIATE_TEST_SUITE_P(
    All, ResolveBatches,
    testing::Values(
        BatchCase{kTbMbGas, 2, 24, 3, 4},
        BatchCase{R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3})", 1, 24, 3, 8},
        BatchCase{R"({"train_batch_size": 24, "gradient_accumulation_steps": 4})", 2, 24, 3, 4},
        BatchCase{R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4})", 2,
                  24, 3, 4},
        BatchCase{R"({"train_batch_size": 24})", 2, 24, 12, 1},
        BatchCase{R"({"train_micro_batch_size_per_gpu": 3})", 2, 6, 3, 1},
        BatchCase{R"({"train_micro_batch_size_per_gpu": "auto"})", 1, 1, 1, 1},
        BatchCase{R"({"train_batch_size": "auto"})", 1, 1, 1, 1},
        BatchCase{R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": "auto",
                      "gradient_accumulation_steps": "auto"})",
                  2, 16, 1, 8}));

TEST(ResolveBatch, InconsistentSizesAreExplained) {
  EXPECT_THAT(problem_of(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 3,
                             "gradient_accumulation_steps": 4})"),
              HasSubstr("train_batch_size 10 is not train_micro_batch_size_per_gpu 3 * "
                        "gradient_accumulation_steps 4 * ranks 1"));
  EXPECT_THAT(problem_of(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 3})"),
              HasSubstr("is not"));
  EXPECT_THAT(problem_of(R"({"train_batch_size": 2, "train_micro_batch_size_per_gpu": 3})"),
              HasSubstr("is not"));
  EXPECT_THAT(problem_of("{}"), HasSubstr("one of train_batch_size and "
                                          "train_micro_batch_size_per_gpu must be given"));
  EXPECT_THAT(problem_of(R"({"gradient_accumulation_steps": 2})"), HasSubstr("must be given"));
  EXPECT_THROW(resolve_text(R"({"train_micro_batch_size_per_gpu": 9e18,
                                "gradient_accumulation_steps": 9e18})"),
               InputError);
}

TEST(ResolveBatch, CommandLineReplacesAndRecomputes) {
  ResolveContext context;
  context.micro_batch = 6;
  const std::string text = R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3,
                               "gradient_accumulation_steps": 8})";
  const Resolution micro = resolve_text(text, context);
  EXPECT_EQ(micro.settings.batch.train, 24);
  EXPECT_EQ(micro.settings.batch.accumulation_steps, 4);
  EXPECT_THAT(texts(micro), Contains(HasSubstr("6 from the command line replaces 3")));
  EXPECT_THAT(texts(micro), Contains(HasSubstr("gradient_accumulation_steps: 8 of the file")));

  context = {};
  context.accumulation_steps = 2;
  const Resolution accumulation = resolve_text(text, context);
  EXPECT_EQ(accumulation.settings.batch.micro, 3);
  EXPECT_EQ(accumulation.settings.batch.train, 6);

  context.train_batch = 24;
  EXPECT_EQ(resolve_text(text, context).settings.batch.micro, 12);

  context.micro_batch = 5;
  EXPECT_THAT(problem_of(text, context), HasSubstr("is not"));
}

TEST(ResolveBatch, AutoIsFilledFromTheCommandLine) {
  ResolveContext context;
  context.micro_batch = 4;
  context.accumulation_steps = 3;
  const Resolution resolution =
      resolve_text(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                       "gradient_accumulation_steps": "auto"})",
                   context);
  EXPECT_EQ(resolution.settings.batch.train, 12);
  EXPECT_THAT(texts(resolution), Contains(HasSubstr("train_batch_size: \"auto\" became 12")));
  EXPECT_THAT(
      texts(resolution),
      Contains("train_micro_batch_size_per_gpu: \"auto\" became 4 (from the command line)"));
}

// ---- dtype and loss scale ----------------------------------------------------------------------

TEST(ResolvePrecision, FollowsTheBlocks) {
  EXPECT_EQ(settings_of("").dtype, DType::f32);
  EXPECT_EQ(settings_of(R"("bf16": {"enabled": true})").dtype, DType::bf16);
  EXPECT_EQ(settings_of(R"("bf16": {"enabled": false})").dtype, DType::f32);
  EXPECT_EQ(settings_of(R"("fp16": {"enabled": true}, "bf16": {"enabled": false})").dtype,
            DType::f16);
  EXPECT_EQ(settings_of(R"("bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"})").dtype,
            DType::f32);
  EXPECT_THAT(problem_of(file_with(R"("fp16": {"enabled": true}, "bf16": {"enabled": true})")),
              HasSubstr("fp16.enabled and bf16.enabled are both true"));
}

TEST(ResolvePrecision, CommandLineFillsAutoAndReplaces) {
  ResolveContext context;
  context.dtype = DType::bf16;
  const Resolution filled = resolve_text(
      file_with(R"("bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"})"), context);
  EXPECT_EQ(filled.settings.dtype, DType::bf16);
  EXPECT_THAT(texts(filled), Contains(HasSubstr("bf16.enabled: \"auto\" became true")));
  EXPECT_THAT(texts(filled), Contains(HasSubstr("fp16.enabled: \"auto\" became false")));
  const Resolution replaced = resolve_text(file_with(R"("fp16": {"enabled": true})"), context);
  EXPECT_EQ(replaced.settings.dtype, DType::bf16);
  EXPECT_FALSE(replaced.settings.loss_scale.dynamic);
  EXPECT_THAT(texts(replaced), Contains(HasSubstr("bf16 from the command line replaces it")));
  context.dtype = DType::i32;
  EXPECT_THAT(problem_of(file_with(""), context), HasSubstr("training in i32"));
}

TEST(ResolvePrecision, SumsOfGradientsAreRoundedUnlessToldOtherwise) {
  EXPECT_FALSE(settings_of(R"("bf16": {"enabled": true})").fp32_gradients);
  EXPECT_FALSE(
      settings_of(R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"})")
          .fp32_gradients);
  EXPECT_TRUE(
      settings_of(R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"})")
          .fp32_gradients);
  EXPECT_THAT(problem_of(R"({"train_batch_size": 1, "bf16": {"enabled": true},
                             "data_types": {"grad_accum_dtype": "fp16"}})"),
              HasSubstr("data_types.grad_accum_dtype: f16 in a training in bf16"));
}

TEST(ResolveLossScale, DynamicDefaultsAndKeys) {
  const LossScaleSettings standard = settings_of(R"("fp16": {"enabled": true})").loss_scale;
  EXPECT_TRUE(standard.dynamic);
  EXPECT_EQ(standard.initial, 65536);
  EXPECT_EQ(standard.window_steps, 1000);
  EXPECT_EQ(standard.hysteresis, 2);
  EXPECT_EQ(standard.min, 1);
  EXPECT_FALSE(standard.consecutive_hysteresis);
  const LossScaleSettings own =
      settings_of(R"("fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale_window": 50,
                     "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 2})")
          .loss_scale;
  EXPECT_EQ(own.initial, 4096);
  EXPECT_EQ(own.window_steps, 50);
  EXPECT_EQ(own.hysteresis, 3);
  EXPECT_TRUE(own.consecutive_hysteresis);
  EXPECT_EQ(own.min, 2);
}

TEST(ResolveLossScale, StaticAndErrors) {
  const LossScaleSettings fixed =
      settings_of(R"("fp16": {"enabled": true, "loss_scale": 128})").loss_scale;
  EXPECT_FALSE(fixed.dynamic);
  EXPECT_EQ(fixed.initial, 128);
  EXPECT_FALSE(
      settings_of(R"("bf16": {"enabled": true}, "fp16": {"loss_scale": 128})").loss_scale.dynamic);
  EXPECT_EQ(
      settings_of(R"("bf16": {"enabled": true}, "fp16": {"loss_scale": 128})").loss_scale.initial,
      1);
  EXPECT_THAT(problem_of(file_with(R"("fp16": {"enabled": true, "loss_scale": 1e39})")),
              HasSubstr("beyond the range of fp32"));
  EXPECT_THAT(problem_of(file_with(
                  R"("fp16": {"enabled": true, "initial_scale_power": 2, "min_loss_scale": 8})")),
              HasSubstr("fp16.min_loss_scale: 8 is above the initial scale 4"));
}

TEST(ResolvePrecision, OverflowCheckOfBf16CanBeSwitchedOff) {
  EXPECT_TRUE(settings_of(R"("bf16": {"enabled": true})").skip_nonfinite_steps);
  EXPECT_FALSE(settings_of(R"("bf16": {"enabled": true, "check_grad_overflow": false})")
                   .skip_nonfinite_steps);
  EXPECT_TRUE(settings_of(R"("fp16": {"enabled": true}, "bf16": {"check_grad_overflow": false})")
                  .skip_nonfinite_steps);
}

// ---- optimizer and scheduler -------------------------------------------------------------------

TEST(ResolveOptimizer, DefaultsAndKeys) {
  const UpdateOptions standard = settings_of("").optimizer;
  EXPECT_EQ(standard.lr, 1e-3);
  EXPECT_EQ(standard.beta1, 0.9);
  EXPECT_EQ(standard.beta2, 0.999);
  EXPECT_EQ(standard.eps, 1e-8);
  EXPECT_EQ(standard.weight_decay, 0);
  EXPECT_TRUE(standard.bias_correction);
  EXPECT_TRUE(standard.decoupled_weight_decay);
  const UpdateOptions own =
      settings_of(R"("optimizer": {"type": "adam", "params": {"lr": 2e-4, "betas": [0.8, 0.7],
                     "eps": 1e-6, "weight_decay": 0.02, "bias_correction": false,
                     "adam_w_mode": false}})")
          .optimizer;
  EXPECT_EQ(own.lr, 2e-4);
  EXPECT_EQ(own.beta1, 0.8);
  EXPECT_EQ(own.beta2, 0.7);
  EXPECT_EQ(own.eps, 1e-6);
  EXPECT_EQ(own.weight_decay, 0.02);
  EXPECT_FALSE(own.bias_correction);
  EXPECT_FALSE(own.decoupled_weight_decay);
}

TEST(ResolveOptimizer, AdamIsDecoupledUnlessToldOtherwiseAndAdamWAlways) {
  EXPECT_TRUE(settings_of(R"("optimizer": {"type": "Adam"})").optimizer.decoupled_weight_decay);
  const Resolution adamw = resolve_text(
      file_with(R"("optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}})"));
  EXPECT_TRUE(adamw.settings.optimizer.decoupled_weight_decay);
  EXPECT_THAT(texts(adamw), Contains(HasSubstr("AdamW is always decoupled")));
}

TEST(ResolveOptimizer, OtherKindsHaveTheirOwnDefaults) {
  const UpdateOptions adagrad = settings_of(R"("optimizer": {"type": "Adagrad"})").optimizer;
  EXPECT_EQ(adagrad.kind, OptimizerKind::adagrad);
  EXPECT_EQ(adagrad.lr, 1e-2);
  EXPECT_EQ(adagrad.eps, 1e-10);
  EXPECT_EQ(settings_of(R"("optimizer": {"type": "Adagrad", "params": {"lr": 0.5, "eps": 1e-3}})")
                .optimizer.lr,
            0.5);
  const UpdateOptions lion = settings_of(R"("optimizer": {"type": "Lion"})").optimizer;
  EXPECT_EQ(lion.kind, OptimizerKind::lion);
  EXPECT_EQ(lion.lr, 1e-3);
  EXPECT_EQ(lion.beta2, 0.999);
  const UpdateOptions sgd =
      settings_of(R"("optimizer": {"type": "SGD", "params": {"momentum": 0.9, "nesterov": true}})")
          .optimizer;
  EXPECT_EQ(sgd.kind, OptimizerKind::sgd);
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_TRUE(sgd.nesterov);
}

TEST(ResolveOptimizer, RefusesWhatAnOptimizerDoesNotHave) {
  const auto refusal = [](const std::string& text) { return problem_of(file_with(text)); };
  EXPECT_THAT(refusal(R"("optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.99]}})"),
              HasSubstr("SGD has no such parameter"));
  EXPECT_THAT(refusal(R"("optimizer": {"type": "Lion", "params": {"eps": 1e-8}})"),
              HasSubstr("Lion has no such parameter"));
  EXPECT_THAT(refusal(R"("optimizer": {"type": "SGD", "params": {"nesterov": true}})"),
              HasSubstr("needs momentum above 0"));
  EXPECT_THAT(refusal(R"("fp16": {"enabled": true}, "optimizer": {"type": "AdamW",
                         "params": {"fp32_optimizer_states": false}})"),
              HasSubstr("needs bf16 training"));
}

TEST(ResolveOptimizer, DtypesOfItsState) {
  const std::string bf16 = R"("bf16": {"enabled": true}, )";
  EXPECT_EQ(settings_of(bf16 + R"("optimizer": {"type": "AdamW"})").state.moment_dtype, DType::f32);
  const std::string own = R"("optimizer": {"type": "AdamW",
                             "params": {"fp32_optimizer_states": false}})";
  EXPECT_EQ(settings_of(bf16 + own).state.moment_dtype, DType::bf16);
  EXPECT_EQ(settings_of(own).state.moment_dtype, DType::f32);
  EXPECT_TRUE(settings_of("").state.split_master);
  EXPECT_FALSE(settings_of(R"("headrace": {"split_master": false})").state.split_master);
}

TEST(ResolveOptimizer, Moments8Bit) {
  const auto with = [](const std::string& optimizer) {
    return R"("optimizer": )" + optimizer + R"(, "headrace": {"lossy_8bit_moments": true})";
  };
  for (const char* dtype :
       {"", R"("bf16": {"enabled": true}, )", R"("fp16": {"enabled": true}, )"}) {
    for (const char* type : {"Adam", "AdamW", "Lion"}) {
      const std::string text = dtype + with(fmt::format(R"({{"type": "{}"}})", type));
      EXPECT_EQ(settings_of(text).state.moment_dtype, DType::u8) << text;
    }
  }
  EXPECT_EQ(settings_of(with(R"({"type": "SGD", "params": {"momentum": 0.9}})")).state.moment_dtype,
            DType::u8);
  const Resolution nothing = resolve_text(file_with(with(R"({"type": "SGD"})")));
  EXPECT_EQ(nothing.settings.state.moment_dtype, DType::f32);
  EXPECT_THAT(texts(nothing), Contains(HasSubstr("keeps no moment")));
  EXPECT_THAT(problem_of(file_with(with(R"({"type": "Adagrad"})"))), HasSubstr("not for Adagrad"));
  EXPECT_THAT(problem_of(file_with(
                  with(R"({"type": "AdamW", "params": {"fp32_optimizer_states": false}})"))),
              HasSubstr("leave one out"));
  EXPECT_THAT(problem_of(file_with(R"("optimizer": {"type": "AdamW8bit"})")),
              HasSubstr("use AdamW with headrace.lossy_8bit_moments"));
}

TEST(ResolveOptimizer, CommandLineAndAuto) {
  ResolveContext context;
  context.lr = 5e-5;
  context.weight_decay = 0.01;
  context.gradient_clipping = 0.5;
  const Resolution resolution =
      resolve_text(file_with(R"("gradient_clipping": "auto", "optimizer": {"type": "AdamW",
                   "params": {"lr": "auto", "betas": "auto", "weight_decay": 0.1}})"),
                   context);
  EXPECT_EQ(resolution.settings.optimizer.lr, 5e-5);
  EXPECT_EQ(resolution.settings.optimizer.weight_decay, 0.01);
  EXPECT_EQ(resolution.settings.gradient_clipping, 0.5);
  EXPECT_THAT(texts(resolution),
              Contains("optimizer.params.lr: \"auto\" became 5e-05 (from the command line)"));
  EXPECT_THAT(texts(resolution),
              Contains("optimizer.params.betas: \"auto\" became [0.9, 0.999] (the default)"));
  EXPECT_THAT(texts(resolution), Contains("optimizer.params.weight_decay: 0.01 from the command "
                                          "line replaces 0.1"));
  EXPECT_EQ(settings_of("").gradient_clipping, 1);
  EXPECT_EQ(settings_of(R"("gradient_clipping": 0)").gradient_clipping, 0);
}

TEST(ResolveScheduler, AbsentMeansConstant) {
  EXPECT_EQ(settings_of("").scheduler.kind, SchedulerKind::constant);
}

TEST(ResolveScheduler, WarmupTakesTheOptimizersRate) {
  const SchedulerSettings standard =
      settings_of(R"("optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
                     "scheduler": {"type": "WarmupLR"})")
          .scheduler;
  EXPECT_EQ(standard.kind, SchedulerKind::warmup);
  EXPECT_EQ(standard.warmup_min_lr, 0);
  EXPECT_EQ(standard.warmup_max_lr, 0.02);
  EXPECT_EQ(standard.warmup_steps, 1000);
  EXPECT_EQ(standard.warmup_shape, WarmupShape::logarithmic);
  const SchedulerSettings own =
      settings_of(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.001,
                     "warmup_max_lr": 0.5, "warmup_num_steps": 7, "warmup_type": "linear"}})")
          .scheduler;
  EXPECT_EQ(own.warmup_min_lr, 0.001);
  EXPECT_EQ(own.warmup_max_lr, 0.5);
  EXPECT_EQ(own.warmup_steps, 7);
  EXPECT_EQ(own.warmup_shape, WarmupShape::linear);
}

TEST(ResolveScheduler, LearningRateOfTheCommandLineReachesTheSchedule) {
  ResolveContext context;
  context.lr = 0.25;
  const Resolution resolution = resolve_text(
      file_with(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}})"), context);
  EXPECT_EQ(resolution.settings.scheduler.warmup_max_lr, 0.25);
  EXPECT_THAT(texts(resolution), Contains(HasSubstr("warmup_max_lr: 0.25 from the command line")));
}

TEST(ResolveScheduler, LengthComesFromTheRunWhereNotGiven) {
  ResolveContext context;
  context.total_steps = 300;
  const std::string decay = R"("scheduler": {"type": "WarmupDecayLR", "params": {)";
  const Resolution filled = resolve_text(
      file_with(decay + R"("total_num_steps": "auto", "warmup_num_steps": "auto"}})"), context);
  EXPECT_EQ(filled.settings.scheduler.kind, SchedulerKind::warmup_decay);
  EXPECT_EQ(filled.settings.scheduler.total_steps, 300);
  EXPECT_EQ(filled.settings.scheduler.warmup_steps, 0);
  EXPECT_THAT(texts(filled), Contains(HasSubstr("total_num_steps: \"auto\" became 300")));
  EXPECT_EQ(resolve_text(file_with(decay + R"("warmup_num_steps": 5}})"), context)
                .settings.scheduler.total_steps,
            300);
  const Resolution given = resolve_text(
      file_with(decay + R"("total_num_steps": 900, "warmup_num_steps": 5}})"), context);
  EXPECT_EQ(given.settings.scheduler.total_steps, 900);
  EXPECT_THAT(texts(given), Contains(HasSubstr("the schedule has 900 steps, the run 300")));
  EXPECT_THAT(problem_of(file_with(decay + "}}")), HasSubstr("scheduler.params.total_num_steps"));
  context.warmup_steps = 400;
  EXPECT_THAT(texts(resolve_text(file_with(decay + "}}"), context)),
              Contains(HasSubstr("end within the warmup of 400 steps")));
}

TEST(ResolveScheduler, Cosine) {
  const SchedulerSettings cosine =
      settings_of(R"("scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 50,
                     "warmup_min_ratio": 0.1, "cos_min_ratio": 0.2, "warmup_num_steps": 3}})")
          .scheduler;
  EXPECT_EQ(cosine.kind, SchedulerKind::warmup_cosine);
  EXPECT_EQ(cosine.total_steps, 50);
  EXPECT_EQ(cosine.warmup_min_ratio, 0.1);
  EXPECT_EQ(cosine.cos_min_ratio, 0.2);
  EXPECT_EQ(cosine.warmup_steps, 3);
}

TEST(ResolvePacking, TheEndOfADocumentComesFromTheFileOrTheModel) {
  ResolveContext context;
  context.vocab_size = 100;
  context.end_tokens = {2};
  EXPECT_EQ(settings_of("", context).document_end, std::nullopt);
  EXPECT_EQ(settings_of(R"("headrace": {"packing": true})", context).document_end, 2);
  EXPECT_EQ(
      settings_of(R"("headrace": {"packing": true, "document_end": 7})", context).document_end, 7);
  const Resolution filled =
      resolve_text(file_with(R"("headrace": {"packing": true, "document_end": "auto"})"), context);
  EXPECT_EQ(filled.settings.document_end, 2);
  EXPECT_THAT(texts(filled),
              Contains(HasSubstr("document_end: \"auto\" became 2 (eos_token_id of the model)")));
  const Resolution off = resolve_text(file_with(R"("headrace": {"document_end": 7})"), context);
  EXPECT_EQ(off.settings.document_end, std::nullopt);
  EXPECT_THAT(texts(off), Contains(HasSubstr("no effect without headrace.packing")));
}

TEST(ResolvePacking, NeedsOneTokenOfTheVocabulary) {
  ResolveContext context;
  context.vocab_size = 100;
  const std::string packing = file_with(R"("headrace": {"packing": true})");
  EXPECT_THAT(problem_of(packing, context),
              AllOf(HasSubstr("headrace.document_end"), HasSubstr("has no eos_token_id")));
  context.end_tokens = {2, 5};
  EXPECT_THAT(problem_of(packing, context), HasSubstr("more than one eos_token_id (2, 5)"));
  context.end_tokens = {-1};
  EXPECT_THAT(problem_of(packing, context), HasSubstr("-1 is not in the model's vocabulary"));
  EXPECT_THAT(
      problem_of(file_with(R"("headrace": {"packing": true, "document_end": 100})"), context),
      HasSubstr("100 is not in the model's vocabulary"));
}

TEST(ResolveCommandLine, ValuesHaveTheRangesOfTheirKeys) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::string file = file_with(R"("scheduler": {"type": "WarmupLR"})");
  const auto problem_with = [&](const auto& change) {
    ResolveContext context;
    change(context);
    return problem_of(file, context);
  };
  EXPECT_THAT(problem_with([](auto& context) { context.micro_batch = 0; }),
              HasSubstr("train_micro_batch_size_per_gpu: 0 is out of range"));
  EXPECT_THAT(problem_with([](auto& context) { context.accumulation_steps = -1; }),
              HasSubstr("gradient_accumulation_steps: -1 is out of range"));
  for (const double lr : {-1.0, kNan, std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(problem_with([&](auto& context) { context.lr = lr; }),
                HasSubstr("optimizer.params.lr: " + fmt::format("{}", lr) + " is out of range"));
  }
  EXPECT_THAT(problem_with([](auto& context) { context.warmup_steps = -1; }),
              HasSubstr("scheduler.params.warmup_num_steps: -1 is out of range"));
  EXPECT_THAT(problem_with([](auto& context) { context.host_memory = Bytes(0); }),
              HasSubstr("headrace.host_memory: 0 is out of range"));
  // Also where it follows from the others.
  EXPECT_THAT(problem_with([](auto& context) {
                context.micro_batch = 1;
                context.train_batch = 1'000'000;
              }),
              HasSubstr("gradient_accumulation_steps: 1000000 is out of range"));
}

}  // namespace
}  // namespace headrace::engine
