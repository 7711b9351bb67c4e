// Whole files: those of configs/, and files as people have them for DeepSpeed, Hugging Face Trainer
// and Accelerate.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/config/resolve.h"
#include "proto/config_parser.h"

namespace headrace::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

/// What a training command knows.
ResolveContext command() {
  ResolveContext context;
  context.hidden_size = 2048;
  context.total_steps = 500;
  context.warmup_steps = 20;
  context.micro_batch = 2;
  context.accumulation_steps = 8;
  context.lr = 2e-5;
  context.weight_decay = 0.01;
  context.gradient_clipping = 1.0;
  context.dtype = DType::bf16;
  return context;
}

struct Read {
  Settings settings;
  std::vector<std::string> notes;
};

Read read(const std::string& text, const ResolveContext& context) {
  const proto::ParsedConfig parsed = proto::parse_config(text, "file");
  const Resolution resolution = resolve(parsed.config, context, "file");
  Read result{resolution.settings, {}};
  for (const auto& notes : {parsed.notes, resolution.notes}) {
    for (const proto::Note& note : notes) {
      result.notes.push_back(note.text);
    }
  }
  return result;
}

TEST(ConfigFiles, OursAreValidWithAndWithoutCommandLine) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(HEADRACE_SOURCE_DIR) + "/configs")) {
    if (entry.path().extension() != ".json") {
      continue;
    }
    ++files;
    const proto::ParsedConfig parsed = proto::load_config(entry.path().string());
    EXPECT_TRUE(parsed.notes.empty()) << entry.path() << ": " << parsed.notes[0].text;
    ResolveContext context;
    context.total_steps = 10;
    EXPECT_NO_THROW(resolve(parsed.config, context)) << entry.path();
    context = command();
    context.dtype.reset();
    const Settings settings = resolve(parsed.config, context).settings;
    EXPECT_EQ(settings.batch.train, 16);
    EXPECT_EQ(settings.optimizer.lr, 2e-5);
    const bool is_bf16 = entry.path().filename() == "zero3_nvme_bf16.json" ||
                         entry.path().filename() == "zero3_cpu.json";
    EXPECT_EQ(settings.dtype, is_bf16 ? DType::bf16 : DType::f32) << entry.path();
    const bool is_nvme = entry.path().filename().string().find("nvme") != std::string::npos;
    EXPECT_EQ(settings.offload.uses_nvme(), is_nvme) << entry.path();
  }
  EXPECT_GE(files, 4);
}

TEST(ConfigFiles, TrainerZero3WithAutoEverywhere) {
  const Read result = read(R"({
    "fp16": { "enabled": "auto", "loss_scale": 0, "loss_scale_window": 500,
              "initial_scale_power": 15, "hysteresis": 2, "min_loss_scale": 1 },
    "bf16": { "enabled": "auto" },
    "optimizer": { "type": "AdamW", "params": { "lr": "auto", "betas": "auto", "eps": "auto",
                                                 "weight_decay": "auto" } },
    "scheduler": { "type": "WarmupDecayLR",
                   "params": { "warmup_min_lr": "auto", "warmup_max_lr": "auto",
                               "warmup_num_steps": "auto", "total_num_steps": "auto" } },
    "zero_optimization": {
      "stage": 3,
      "offload_optimizer": { "device": "cpu", "pin_memory": true },
      "offload_param": { "device": "cpu", "pin_memory": true },
      "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
      "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
      "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
      "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true
    },
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": false
  })",
                           command());
  const Settings& settings = result.settings;
  EXPECT_EQ(settings.batch.train, 16);
  EXPECT_EQ(settings.dtype, DType::bf16);
  EXPECT_FALSE(settings.loss_scale.dynamic);
  EXPECT_EQ(settings.optimizer.lr, 2e-5);
  EXPECT_EQ(settings.optimizer.weight_decay, 0.01);
  EXPECT_EQ(settings.scheduler.kind, SchedulerKind::warmup_decay);
  EXPECT_EQ(settings.scheduler.total_steps, 500);
  EXPECT_EQ(settings.scheduler.warmup_steps, 20);
  EXPECT_EQ(settings.scheduler.warmup_max_lr, 2e-5);
  EXPECT_EQ(settings.offload.weights, OffloadDevice::cpu);
  EXPECT_EQ(settings.liveness.persistence_threshold, Elements(20480));
  EXPECT_EQ(settings.liveness.prefetch_bucket, Elements(3774873));  // int(0.9 * 2048 * 2048)
  EXPECT_THAT(result.notes, Contains(HasSubstr("reduce_bucket_size: \"auto\" became 4194304")));
  EXPECT_THAT(result.notes, Contains(HasSubstr("overlap_comm has no effect here")));
}

TEST(ConfigFiles, InfinityOnNvme) {
  const Read result = read(R"({
    // as in the documentation of ZeRO-Infinity
    "train_batch_size": 32,
    "gradient_accumulation_steps": 4,
    "fp16": { "enabled": true, "initial_scale_power": 14 },
    "zero_optimization": {
      "stage": 3, "contiguous_gradients": true, "stage3_max_live_parameters": 2e9,
      "stage3_max_reuse_distance": 2e9, "stage3_prefetch_bucket_size": 2e7,
      "stage3_param_persistence_threshold": 2e5, "reduce_bucket_size": 2e7, "sub_group_size": 3e8,
      "offload_optimizer": { "device": "nvme", "nvme_path": "/nvme/0", "buffer_count": 4,
                             "pipeline_read": true, "pipeline_write": false, "pin_memory": true,
                             "fast_init": true },
      "offload_param": { "device": "nvme", "nvme_path": "/nvme/0", "buffer_count": 6,
                         "buffer_size": 2e8, "max_in_cpu": 1e9, "pin_memory": true }
    },
    /* an old name */
    "aio": { "block_size": 262144, "queue_depth": 32, "thread_count": 2, "single_submit": false,
             "overlap_events": true }
  })",
                           {});
  const Settings& settings = result.settings;
  EXPECT_EQ(settings.batch.micro, 8);
  EXPECT_EQ(settings.dtype, DType::f16);
  EXPECT_EQ(settings.loss_scale.initial, 16384);
  EXPECT_EQ(settings.offload.optimizer, OffloadDevice::nvme);
  EXPECT_EQ(settings.offload.weights, OffloadDevice::nvme);
  EXPECT_EQ(settings.offload.sub_group, Elements(300'000'000));
  EXPECT_THAT(settings.offload.nvme_paths, ElementsAre("/nvme/0"));
  EXPECT_EQ(settings.aio.block_size, 256 * kKiB);
  EXPECT_EQ(settings.aio.threads, 2);
  EXPECT_EQ(settings.liveness.max_live_parameters, Elements(2'000'000'000));
  EXPECT_THAT(result.notes, Contains(HasSubstr("aio.thread_count is an old name")));
  EXPECT_THAT(result.notes, Contains(HasSubstr("buffer_size has no effect here")));
}

TEST(ConfigFiles, Zero2OfThePast) {
  const Read result = read(R"({
    "train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_print": 100,
    "optimizer": { "type": "Adam", "params": { "lr": 0.0003, "betas": [0.8, 0.99], "eps": 1e-7,
                                               "weight_decay": 3e-7, "adam_w_mode": false } },
    "scheduler": { "type": "WarmupLR", "params": { "warmup_min_lr": 0, "warmup_max_lr": 0.0003,
                                                   "warmup_num_steps": 50 } },
    "gradient_clipping": 0.3, "prescale_gradients": false, "bfloat16": { "enabled": true },
    "zero_optimization": { "stage": 2, "cpu_offload": true, "allgather_partitions": true,
                           "allgather_bucket_size": 2e8, "reduce_scatter": true,
                           "overlap_comm": false },
    "amp": { "enabled": false }, "wall_clock_breakdown": true,
    "tensorboard": { "enabled": false }, "flops_profiler": { "enabled": false, "profile_step": 2 },
    "activation_checkpointing": { "partition_activations": false, "cpu_checkpointing": true }
  })",
                           {});
  const Settings& settings = result.settings;
  EXPECT_EQ(settings.batch.micro, 8);
  EXPECT_EQ(settings.dtype, DType::bf16);
  EXPECT_FALSE(settings.optimizer.decoupled_weight_decay);
  EXPECT_EQ(settings.offload.optimizer, OffloadDevice::cpu);
  EXPECT_EQ(settings.offload.activations, OffloadDevice::cpu);
  EXPECT_EQ(settings.gradient_clipping, 0.3);
  EXPECT_TRUE(settings.wall_clock_breakdown);
  EXPECT_EQ(settings.steps_per_print, 100);
  EXPECT_THAT(result.notes, Contains(HasSubstr("zero_optimization.cpu_offload is an old key")));
  EXPECT_THAT(result.notes, Contains(HasSubstr("bfloat16 is an old name")));
}

TEST(ConfigFiles, AccelerateTemplate) {
  ResolveContext context = command();
  context.nvme_paths = {"/scratch/run"};
  const Read result = read(R"({
    "bf16": { "enabled": true },
    "zero_optimization": {
      "stage": 3, "stage3_gather_16bit_weights_on_model_save": "auto",
      "offload_optimizer": { "device": "nvme", "nvme_path": "auto" },
      "offload_param": { "device": "auto", "nvme_path": "auto" },
      "leaf_module": { "classes": "Block" }
    },
    "gradient_clipping": "auto", "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "zero_allow_untested_optimizer": true, "checkpoint": { "use_node_local_storage": "auto" }
  })",
                           context);
  EXPECT_EQ(result.settings.offload.weights, OffloadDevice::none);
  EXPECT_EQ(result.settings.offload.optimizer, OffloadDevice::nvme);
  EXPECT_THAT(result.settings.offload.nvme_paths, ElementsAre("/scratch/run"));
  EXPECT_EQ(result.settings.optimizer.lr, 2e-5);
  EXPECT_THAT(result.notes, Contains(HasSubstr("offload_param.device: \"auto\" became none")));
}

}  // namespace
}  // namespace headrace::engine
