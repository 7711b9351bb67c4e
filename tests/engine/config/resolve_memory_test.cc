#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/run_setup.h"
#include "tests/engine/config/resolve_fixture.h"

namespace headrace::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Matcher;
using testing::Not;

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

TEST(ResolveOffload, RatioOfTheOptimizer) {
  const std::string zero =
      R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}})";
  EXPECT_EQ(settings_of(zero).offload.optimizer_ratio, 0.3);
  EXPECT_EQ(settings_of("").offload.optimizer_ratio, std::nullopt);
  const Matcher<std::vector<std::string>> is_noted =
      Contains(HasSubstr("offload_optimizer.ratio has no effect"));
  EXPECT_THAT(texts(resolve_text(file_with(zero))), is_noted);  // no device tier
  const std::string device = R"(, "headrace": {"device_memory": "1GB"})";
  EXPECT_THAT(texts(resolve_text(file_with(zero + device))), Not(is_noted));
  EXPECT_THAT(
      texts(resolve_text(file_with(
          R"("zero_optimization": {"stage": 3, "offload_optimizer": {"ratio": 0.3}})" + device))),
      is_noted);
  const std::string eight_bits =
      R"(, "headrace": {"device_memory": "1GB", "lossy_8bit_moments": true})";
  EXPECT_THAT(texts(resolve_text(file_with(zero + eight_bits))), is_noted);
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
  const scheduler::LivenessLimits own =
      settings_of(R"("zero_optimization": {"stage3_max_live_parameters": 5,
                     "stage3_max_reuse_distance": 6, "stage3_model_persistence_threshold": 7})")
          .liveness;
  EXPECT_EQ(own.max_live_parameters, Elements(5));
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

TEST(ResolveLiveness, LimitsThatAreNotReadAreNamed) {
  const std::string limits = R"("zero_optimization": {"stage": 3,
                                "stage3_max_live_parameters": 1e9}, )";
  EXPECT_THAT(texts(resolve_text(file_with(limits + R"("headrace": {"policy": "optimal"})"))),
              Contains(HasSubstr("are read by headrace.policy liveness only")));
  const Resolution liveness =
      resolve_text(file_with(limits + R"("headrace": {"policy": "liveness"})"));
  EXPECT_EQ(liveness.settings.policy, PolicyKind::liveness);
  EXPECT_THAT(texts(liveness), Not(Contains(HasSubstr("liveness only"))));
}

TEST(ResolveAioKeys, AreTaken) {
  const AioSettings standard = settings_of("").aio;
  EXPECT_EQ(standard.block_size, kMiB);
  EXPECT_EQ(standard.requests_in_flight(), 16);
  EXPECT_EQ(standard.backend, IoBackendChoice::automatic);
  EXPECT_TRUE(standard.verify_reads);
  EXPECT_TRUE(standard.adaptive_depth);
  EXPECT_EQ(standard.submission, aio::SubmissionMode::interrupt);
  EXPECT_FALSE(standard.prewrite);
  EXPECT_FALSE(standard.read_limit || standard.write_limit || standard.limit);
  const AioSettings own =
      settings_of(R"("aio": {"block_size": 262144, "queue_depth": 16, "intra_op_parallelism": 2},
                     "headrace": {"io_backend": "thread_pool", "verify_reads": false,
                                  "io_submission": "sq_poll", "nvme_prewrite": true})")
          .aio;
  EXPECT_EQ(own.block_size, 256 * kKiB);
  EXPECT_EQ(own.queue_depth, 16);
  EXPECT_EQ(own.threads, 2);
  EXPECT_EQ(own.requests_in_flight(), 32);
  EXPECT_FALSE(own.adaptive_depth);
  EXPECT_EQ(own.submission, aio::SubmissionMode::sq_poll);
  EXPECT_TRUE(own.prewrite);
  EXPECT_EQ(own.backend, IoBackendChoice::thread_pool);
  EXPECT_FALSE(own.verify_reads);
  EXPECT_THAT(problem_of(file_with(R"("aio": {"block_size": 5000})")),
              HasSubstr("aio.block_size: 5000 is not a multiple of 4096"));
}

TEST(ResolveAioKeys, DirectReadsAreDeepSpeedsOrOurs) {
  const auto asks = [](const std::string& keys) {
    const Settings settings = settings_of(keys);
    EXPECT_EQ(make_engine_options(settings, 64).direct_reads, settings.aio.direct);
    return settings.aio.direct;
  };
  EXPECT_FALSE(asks(""));
  EXPECT_TRUE(asks(R"("aio": {"use_gds": true})"));
  EXPECT_TRUE(asks(R"("headrace": {"gpudirect": true})"));
  EXPECT_FALSE(asks(R"("aio": {"use_gds": true}, "headrace": {"gpudirect": false})"));
  EXPECT_THAT(texts(resolve_text(file_with(R"("aio": {"use_gds": true})"), {})),
              Contains(HasSubstr("headrace.gpudirect (aio.use_gds): has no effect, nothing goes")));
}

TEST(ResolveLimits, AreBytesPerSecond) {
  const Settings none = settings_of(R"("headrace": {"link_limit": "auto"})");
  EXPECT_FALSE(none.link_limit);
  const Settings own = settings_of(
      R"("headrace": {"nvme_read_limit": "500MB", "nvme_write_limit": 2097152,
                      "nvme_limit": "600MB", "link_limit": "1GiB"})");
  EXPECT_EQ(own.aio.read_limit, Bytes(500'000'000));
  EXPECT_EQ(own.aio.write_limit, 2 * kMiB);
  EXPECT_EQ(own.aio.limit, Bytes(600'000'000));
  EXPECT_EQ(own.link_limit, kGiB);
  EXPECT_THAT(texts(resolve_text(file_with(R"("headrace": {"link_limit": "1GiB"})"), {})),
              Contains(HasSubstr("headrace.link_limit: has no effect")));
  for (const char* key : {"nvme_read_limit", "nvme_write_limit", "nvme_limit"}) {
    const std::string own_key = fmt::format(R"("headrace": {{"{}": "1GiB"}})", key);
    EXPECT_THAT(texts(resolve_text(file_with(own_key), {})),
                Contains(HasSubstr("nvme_limit: have no effect")));
  }
  EXPECT_THAT(problem_of(file_with(R"("headrace": {"nvme_read_limit": 500})")),
              HasSubstr("headrace.nvme_read_limit"));
  const EngineOptions options = make_engine_options(own, 64);
  EXPECT_EQ(options.io.limits.read_bytes_per_second, 500e6);
  EXPECT_EQ(options.io.limits.write_bytes_per_second, 2097152);
  EXPECT_EQ(options.io.limits.both_bytes_per_second, 600e6);
  EXPECT_EQ(options.link_limit, 1073741824);
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
  ResolveContext none;
  none.no_gpu_reason = "this machine has no NVIDIA driver";
  EXPECT_THAT(problem_of(file_with(R"("headrace": {"compute": "device"})"), none),
              HasSubstr("no GPU is used: this machine has no NVIDIA driver"));
  EXPECT_THAT(problem_of(file_with(R"("headrace": {"compute": "host", "device_memory": "1MiB"})")),
              HasSubstr("headrace.device_memory: with headrace.compute = host"));
}

TEST(ResolveCompute, Tf32IsForFp32OnAGpu) {
  ResolveContext gpu;
  gpu.has_gpu = true;
  EXPECT_FALSE(settings_of("", gpu).tf32);
  const std::string wanted = R"("headrace": {"tf32": true})";
  const auto has_no_effect = Contains(HasSubstr("headrace.tf32: has no effect"));
  const Resolution used = resolve_text(file_with(wanted), gpu);
  EXPECT_TRUE(used.settings.tf32);
  EXPECT_THAT(texts(used), Not(has_no_effect));
  EXPECT_THAT(texts(resolve_text(file_with(wanted), {})), has_no_effect);
  EXPECT_THAT(texts(resolve_text(file_with(wanted + R"(, "bf16": {"enabled": true})"), gpu)),
              has_no_effect);
}

TEST(ResolveCompute, CudaGraphsAreUsedWhereTheyHelpUnlessSaidOtherwise) {
  using device::GraphUse;
  EXPECT_EQ(settings_of("").cuda_graphs, GraphUse::measured);
  EXPECT_EQ(settings_of(R"("headrace": {"cuda_graphs": "auto"})").cuda_graphs, GraphUse::measured);
  EXPECT_EQ(settings_of(R"("headrace": {"cuda_graphs": true})").cuda_graphs, GraphUse::on);
  EXPECT_EQ(settings_of(R"("headrace": {"cuda_graphs": false})").cuda_graphs, GraphUse::off);
  const auto has_no_effect = Contains(HasSubstr("headrace.cuda_graphs: has no effect"));
  const auto texts_of = [](const std::string& value, bool has_gpu) {
    ResolveContext context;
    context.has_gpu = has_gpu;
    return texts(resolve_text(file_with(R"("headrace": {"cuda_graphs": )" + value + "}"), context));
  };
  EXPECT_THAT(texts_of("true", false), has_no_effect);
  EXPECT_THAT(texts_of("true", true), Not(has_no_effect));
  EXPECT_THAT(texts_of("false", false), Not(has_no_effect));
}

TEST(ResolveCompute, AttentionIsOursUnlessAskedFor) {
  ResolveContext gpu;
  gpu.has_gpu = true;
  EXPECT_EQ(settings_of("", gpu).attention, device::AttentionChoice::own);
  const std::string bf16 = R"(, "bf16": {"enabled": true})";
  const std::string fastest = R"("headrace": {"attention": "fastest"})";
  const auto has_no_effect = Contains(HasSubstr("headrace.attention: has no effect"));
  const Resolution used = resolve_text(file_with(fastest + bf16), gpu);
  EXPECT_EQ(used.settings.attention, device::AttentionChoice::fastest);
  EXPECT_THAT(texts(used), Not(has_no_effect));
  EXPECT_EQ(settings_of(R"("headrace": {"attention": "cudnn"})" + bf16, gpu).attention,
            device::AttentionChoice::cudnn);
  EXPECT_THAT(texts(resolve_text(file_with(fastest + bf16), {})), has_no_effect);
  EXPECT_THAT(texts(resolve_text(file_with(fastest), gpu)), has_no_effect);
}

TEST(ResolveCompute, Fp8IsFor16BitsAndOnTheCpuForChecks) {
  ResolveContext gpu;
  gpu.has_gpu = true;
  EXPECT_FALSE(settings_of("", gpu).fp8_forward);
  const std::string wanted = R"("headrace": {"lossy_fp8_forward": true})";
  const std::string bf16 = wanted + R"(, "bf16": {"enabled": true})";
  const auto is_slow = Contains(HasSubstr("headrace.lossy_fp8_forward: the CPU computes"));
  const Resolution used = resolve_text(file_with(bf16), gpu);
  EXPECT_TRUE(used.settings.fp8_forward);
  EXPECT_THAT(texts(used), Not(is_slow));
  EXPECT_THAT(texts(resolve_text(file_with(bf16), {})), is_slow);
  EXPECT_THAT(problem_of(file_with(wanted), gpu),
              HasSubstr("headrace.lossy_fp8_forward: needs bf16 or fp16 training"));
}

TEST(ResolveCompute, AGpuWithoutFp8IsRefused) {
  ResolveContext context;
  context.has_gpu = true;
  context.device_memory = kGiB;
  Settings settings =
      settings_of(R"("bf16": {"enabled": true}, "headrace": {"lossy_fp8_forward": true})", context);
  device::GpuFound found;
  found.description = "NVIDIA A100, compute capability 8.0";
  found.make_device = [](const device::GpuOptions&) { return device::make_cpu_device(); };
  settings.gpu = {found, ""};
  try {
    make_engine_options(settings, 64);
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("headrace.lossy_fp8_forward"),
                                    HasSubstr("A100, compute capability 8.0 has no products"),
                                    HasSubstr("leave the key out")));
  }
  settings.gpu.gpu->has_fp8 = true;
  EXPECT_TRUE(make_engine_options(settings, 64).fp8_forward);
}

/// A run computes on the GPU that the settings hold, in the way they say; nothing is searched
/// again.
TEST(ResolveCompute, TheGpuOfTheSettingsIsUsed) {
  ResolveContext context;
  context.has_gpu = true;
  Settings settings = settings_of(
      R"("headrace": {"tf32": true, "cuda_graphs": true, "attention": "cudnn",
                      "device_memory": "1GiB"})",
      context);
  device::GpuOptions how;
  device::GpuFound found;
  found.make_device = [&](const device::GpuOptions& made) {
    how = made;
    return device::make_cpu_device();
  };
  settings.gpu = {found, ""};
  const EngineOptions options = make_engine_options(settings, 64);
  ASSERT_TRUE(options.make_device);
  EXPECT_NE(options.make_device(), nullptr);
  EXPECT_TRUE(how.tf32);
  EXPECT_EQ(how.graphs.use, device::GraphUse::on);
  EXPECT_EQ(how.attention, device::AttentionChoice::cudnn);
  EXPECT_EQ(how.attention_workspace, kMiB * 32);
  settings.gpu = {std::nullopt, "none for a test"};
  EXPECT_FALSE(make_engine_options(settings, 64).make_device) << "the device is emulated";
}

TEST(ResolveHeadrace, OtherKeys) {
  const Settings settings = settings_of(
      R"("steps_per_print": 5, "wall_clock_breakdown": true, "memory_breakdown": true,
         "tensorboard": {"enabled": true, "output_path": "logs", "job_name": "one"},
         "csv_monitor": {"enabled": true, "output_path": "auto"},
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
  EXPECT_TRUE(settings.memory_breakdown);
  EXPECT_EQ(settings.tensorboard, (MonitorSettings{true, "logs", "one"}));
  EXPECT_EQ(settings.csv_monitor, (MonitorSettings{true, "", "DeepSpeedJobName"}));
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

TEST(ResolveHeadrace, RecomputeLevel) {
  const auto level_of = [](const std::string& text) {
    return settings_of(R"("headrace": {"recompute": )" + text + "}").recompute;
  };
  EXPECT_EQ(settings_of("").recompute, std::nullopt);
  EXPECT_EQ(level_of("\"auto\""), std::nullopt);
  EXPECT_EQ(level_of("\"none\""), model::Recompute::none);
  EXPECT_EQ(level_of("\"mlp\""), model::Recompute::mlp);
  EXPECT_EQ(level_of("\"block\""), model::Recompute::block);
  EXPECT_THAT(problem_of(file_with(R"("headrace": {"recompute": "all"})")),
              HasSubstr("headrace.recompute"));
}

TEST(ResolveAll, ProblemsAreReportedTogether) {
  const std::string problem = problem_of(
      R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}, "aio": {"block_size": 5000},
          "zero_optimization": {"stage": 1, "offload_param": {"device": "nvme"}}})");
  EXPECT_THAT(problem, HasSubstr("c.json: 5 problems:"));
}

}  // namespace
}  // namespace headrace::engine
