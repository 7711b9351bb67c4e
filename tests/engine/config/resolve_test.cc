#include "engine/config/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "proto/config_parser.h"

namespace headrace::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// `keys` completed to a file that needs no command line.
std::string file_with(const std::string& keys) {
  return "{\"train_batch_size\": 8" + (keys.empty() ? "" : ", " + keys) + "}";
}

Resolution resolve_text(const std::string& text, const ResolveContext& context = {}) {
  return resolve(proto::parse_config(text, "c.json").config, context, "c.json");
}

Settings settings_of(const std::string& keys, const ResolveContext& context = {}) {
  return resolve_text(file_with(keys), context).settings;
}

std::string problem_of(const std::string& text, const ResolveContext& context = {}) {
  try {
    resolve_text(text, context);
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

std::vector<std::string> texts(const Resolution& resolution) {
  std::vector<std::string> result;
  for (const proto::Note& note : resolution.notes) {
    result.push_back(note.text);
  }
  return result;
}

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
  const OptimizerSettings standard = settings_of("").optimizer;
  EXPECT_EQ(standard.lr, 1e-3);
  EXPECT_EQ(standard.beta1, 0.9);
  EXPECT_EQ(standard.beta2, 0.999);
  EXPECT_EQ(standard.eps, 1e-8);
  EXPECT_EQ(standard.weight_decay, 0);
  EXPECT_TRUE(standard.bias_correction);
  EXPECT_TRUE(standard.decoupled_weight_decay);
  const OptimizerSettings own =
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

// ---- offload -----------------------------------------------------------------------------------

TEST(ResolveOffload, DevicesAndPaths) {
  const OffloadSettings none = settings_of(R"("zero_optimization": {"stage": 2})").offload;
  EXPECT_EQ(none.zero_stage, 2);
  EXPECT_EQ(none.weights, OffloadDevice::none);
  EXPECT_EQ(none.optimizer, OffloadDevice::none);
  EXPECT_THAT(none.nvme_paths, IsEmpty());
  const OffloadSettings both =
      settings_of(R"("zero_optimization": {"stage": 3, "sub_group_size": 1e6,
                     "offload_param": {"device": "nvme", "nvme_path": "/a", "pin_memory": false},
                     "offload_optimizer": {"device": "nvme", "nvme_path": "/a"}})")
          .offload;
  EXPECT_EQ(both.weights, OffloadDevice::nvme);
  EXPECT_EQ(both.optimizer, OffloadDevice::nvme);
  EXPECT_EQ(both.sub_group, Elements(1'000'000));
  EXPECT_FALSE(both.pin_memory);
  EXPECT_THAT(both.nvme_paths, ElementsAre("/a"));
  const OffloadSettings cpu =
      settings_of(R"("zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu",
                     "nvme_path": "/unused"}})")
          .offload;
  EXPECT_EQ(cpu.optimizer, OffloadDevice::cpu);
  EXPECT_THAT(cpu.nvme_paths, IsEmpty());
}

TEST(ResolveOffload, PathsByPrecedence) {
  const std::string offload =
      R"("zero_optimization": {"stage": 3,
         "offload_param": {"device": "nvme", "nvme_path": "/a"},
         "offload_optimizer": {"device": "nvme", "nvme_path": "/b"}})";
  const Resolution striped = resolve_text(file_with(offload));
  EXPECT_THAT(striped.settings.offload.nvme_paths, ElementsAre("/a", "/b"));
  EXPECT_THAT(texts(striped), Contains(HasSubstr("striped over /a and /b")));
  const std::string own = offload + R"(, "headrace": {"nvme_path": ["/c", "/d"]})";
  EXPECT_THAT(settings_of(own).offload.nvme_paths, ElementsAre("/c", "/d"));
  ResolveContext context;
  context.nvme_paths = {"/e"};
  EXPECT_THAT(settings_of(own, context).offload.nvme_paths, ElementsAre("/e"));
}

TEST(ResolveOffload, NvmeNeedsAPath) {
  EXPECT_THAT(problem_of(file_with(
                  R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}})")),
              HasSubstr("headrace.nvme_path: nothing says where files go, although "
                        "zero_optimization.offload_param is to be on nvme"));
  EXPECT_THAT(problem_of(file_with(
                  R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}})")),
              HasSubstr("offload_optimizer"));
  EXPECT_THAT(problem_of(file_with(R"("headrace": {"activation_nvme": true})")),
              HasSubstr("headrace.activation_nvme"));
  EXPECT_THAT(problem_of(file_with(
                  R"("headrace": {"activation_nvme": true, "nvme_path": ["/a", "", "/a"]})")),
              testing::AllOf(HasSubstr("is empty"), HasSubstr("/a is given twice")));
}

TEST(ResolveOffload, StagesAreChecked) {
  struct Case {
    std::string zero;
    std::string part;
  };
  for (const Case& c : std::vector<Case>{
           {R"("stage": 2, "offload_param": {"device": "cpu"})", "offload_param.device"},
           {R"("stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"})",
            "offload_optimizer.device: nvme needs stage 3, not 2"},
           {R"("stage": 0, "offload_optimizer": {"device": "cpu"})", "stage 1, 2 or 3"},
           {R"("stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5})",
            "offload_optimizer.ratio"},
       }) {
    EXPECT_THAT(problem_of(file_with("\"zero_optimization\": {" + c.zero + "}")),
                HasSubstr(c.part));
  }
}

TEST(ResolveOffload, ActivationsFollowTheirKeys) {
  EXPECT_EQ(settings_of("").offload.activations, OffloadDevice::none);
  const std::string cpu = R"("activation_checkpointing": {"cpu_checkpointing": true})";
  EXPECT_EQ(settings_of(cpu).offload.activations, OffloadDevice::cpu);
  EXPECT_EQ(settings_of(cpu + R"(, "headrace": {"activation_nvme": true, "nvme_path": "/a"})")
                .offload.activations,
            OffloadDevice::nvme);
}

// ---- sizes that follow from the model ----------------------------------------------------------

TEST(ResolveLiveness, AutoFollowsTheHiddenSize) {
  const std::string zero =
      R"("zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
         "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"})";
  ResolveContext context;
  context.hidden_size = 576;
  const Resolution known = resolve_text(file_with(zero), context);
  EXPECT_EQ(known.settings.liveness.prefetch_bucket, Elements(298598));  // int(0.9 * 576 * 576)
  EXPECT_EQ(known.settings.liveness.persistence_threshold, Elements(5760));
  EXPECT_THAT(texts(known), Contains(HasSubstr("reduce_bucket_size: \"auto\" became 331776")));
  const Resolution unknown = resolve_text(file_with(zero));
  EXPECT_EQ(unknown.settings.liveness.prefetch_bucket, Elements(50'000'000));
  EXPECT_THAT(texts(unknown),
              Contains(HasSubstr("stage3_prefetch_bucket_size: \"auto\" became 50000000")));
  const LivenessSettings own = settings_of(R"("zero_optimization": {"stage3_max_live_parameters": 5,
                     "stage3_max_reuse_distance": 6, "stage3_model_persistence_threshold": 7})")
                                   .liveness;
  EXPECT_EQ(own.max_live, Elements(5));
  EXPECT_EQ(own.max_reuse_distance, Elements(6));
  EXPECT_EQ(own.model_persistence_threshold, Elements(7));
}

TEST(ResolveAuto, EveryAutoIsReportedOnce) {
  const Resolution resolution = resolve_text(
      R"({"train_batch_size": "auto", "bf16": {"enabled": "auto", "check_grad_overflow": "auto"},
          "headrace": {"host_memory": "auto", "compute": "auto", "seed": "auto",
                       "run_id": "auto", "io_backend": "auto", "vocab_tile": "auto"},
          "zero_optimization": {"stage": "auto", "offload_param": {"nvme_path": "auto"}}})");
  int autos = 0;
  for (const std::string& text : texts(resolution)) {
    autos += text.find("\"auto\" became") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(autos, 11);
}

// ---- aio, budgets, compute ---------------------------------------------------------------------

TEST(ResolveAioKeys, AreTaken) {
  const AioSettings standard = settings_of("").aio;
  EXPECT_EQ(standard.block_size, kMiB);
  EXPECT_EQ(standard.requests_in_flight(), 8);
  EXPECT_EQ(standard.backend, IoBackendChoice::automatic);
  EXPECT_TRUE(standard.verify_reads);
  const AioSettings own =
      settings_of(R"("aio": {"block_size": 262144, "queue_depth": 16, "intra_op_parallelism": 2},
                     "headrace": {"io_backend": "thread_pool", "verify_reads": false})")
          .aio;
  EXPECT_EQ(own.block_size, 256 * kKiB);
  EXPECT_EQ(own.queue_depth, 16);
  EXPECT_EQ(own.threads, 2);
  EXPECT_EQ(own.requests_in_flight(), 32);
  EXPECT_EQ(own.backend, IoBackendChoice::thread_pool);
  EXPECT_FALSE(own.verify_reads);
  EXPECT_THAT(problem_of(file_with(R"("aio": {"block_size": 5000})")),
              HasSubstr("aio.block_size: 5000 is not a multiple of 4096"));
}

TEST(ResolveBudgets, FileAndCommandLine) {
  const BudgetSettings none = settings_of("").budgets;
  EXPECT_FALSE(none.device || none.host || none.nvme);
  const std::string own =
      R"("headrace": {"device_memory": "64MiB", "host_memory": "1GiB", "nvme_budget": "auto"})";
  const BudgetSettings file = settings_of(own).budgets;
  EXPECT_EQ(file.device, 64 * kMiB);
  EXPECT_EQ(file.host, kGiB);
  EXPECT_FALSE(file.nvme);
  ResolveContext context;
  context.device_memory = 32 * kMiB;
  const Resolution replaced = resolve_text(file_with(own), context);
  EXPECT_EQ(replaced.settings.budgets.device, 32 * kMiB);
  EXPECT_THAT(texts(replaced),
              Contains(HasSubstr("headrace.device_memory: 32.0 MiB from the command line replaces "
                                 "64.0 MiB")));
}

TEST(ResolveCompute, PlaceFollowsTheDevice) {
  EXPECT_EQ(settings_of("").compute, ComputePlace::host);
  EXPECT_EQ(settings_of(R"("headrace": {"device_memory": "1MiB"})").compute, ComputePlace::device);
  ResolveContext gpu;
  gpu.has_gpu = true;
  EXPECT_EQ(settings_of("", gpu).compute, ComputePlace::device);
  EXPECT_EQ(settings_of(R"("headrace": {"compute": "host"})", gpu).compute, ComputePlace::host);
  EXPECT_THAT(problem_of(file_with(R"("headrace": {"compute": "device"})")),
              HasSubstr("needs headrace.device_memory"));
  EXPECT_THAT(problem_of(file_with(R"("headrace": {"compute": "host", "device_memory": "1MiB"})")),
              HasSubstr("headrace.device_memory: with headrace.compute = host"));
}

TEST(ResolveHeadrace, OtherKeys) {
  const Settings settings = settings_of(
      R"("steps_per_print": 5, "wall_clock_breakdown": true,
         "headrace": {"policy": "lru", "vocab_tile": 1024, "max_shard_size": "1GB", "seed": 7,
                      "max_skipped_steps": 9, "run_id": "night-1"})");
  EXPECT_EQ(settings.policy, PolicyKind::lru);
  EXPECT_EQ(settings.vocab_tile, 1024);
  EXPECT_EQ(settings.max_shard_size, Bytes(1'000'000'000));
  EXPECT_EQ(settings.seed, 7U);
  EXPECT_EQ(settings.max_skipped_steps, 9);
  EXPECT_EQ(settings.run_id, "night-1");
  EXPECT_EQ(settings.steps_per_print, 5);
  EXPECT_TRUE(settings.wall_clock_breakdown);
  for (const char* id : {"", ".hidden", "a/b", "a b", "..",
                         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    EXPECT_THAT(problem_of(file_with(std::string(R"("headrace": {"run_id": ")") + id + "\"}")),
                HasSubstr("headrace.run_id"));
  }
  ResolveContext context;
  context.policy = PolicyKind::optimal;
  context.seed = 8;
  context.io_backend = IoBackendChoice::io_uring;
  const Settings replaced = settings_of(R"("headrace": {"policy": "lru", "seed": 7})", context);
  EXPECT_EQ(replaced.policy, PolicyKind::optimal);
  EXPECT_EQ(replaced.seed, 8U);
  EXPECT_EQ(replaced.aio.backend, IoBackendChoice::io_uring);
}

TEST(ResolveAll, ProblemsAreReportedTogether) {
  const std::string problem = problem_of(
      R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}, "aio": {"block_size": 5000},
          "zero_optimization": {"stage": 1, "offload_param": {"device": "nvme"}}})");
  EXPECT_THAT(problem, HasSubstr("c.json: 5 problems:"));
}

}  // namespace
}  // namespace headrace::engine
