// Training on the CUDA device with reads straight from nvme to it, here over the fake GPU and the
// fake cuFile: the same bits as through the host in any budget, and nothing lost where they fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "e2e/cuda_training.h"
#include "engine/direct_path.h"
#include "support/real_gpu.h"
#include "tests/fake_cuda/fake_cufile.h"

namespace headrace {
namespace {

using device::testing::FakeCuda;
using device::testing::FakeCuFile;

/// A fake GPU with its fake cuFile.
struct Machine {
  explicit Machine(const FakeCuFile::Options& options = {})
      : cufile(std::make_shared<FakeCuFile>(gpu, options)) {}

  /// Direct reads are asked for, and taken to be as fast as those into the host.
  engine::EngineOptions direct(engine::EngineOptions options) const {
    engine::use_gpu(options, test::fake_gpu(gpu, [made = cufile](std::string&) { return made; }),
                    {});
    options.direct_reads = true;
    options.assumed_direct_share = 1;
    options.verify_reads = false;
    return options;
  }

  std::shared_ptr<FakeCuda> gpu = std::make_shared<FakeCuda>();
  std::shared_ptr<FakeCuFile> cufile;
};

engine::EngineOptions all_on_nvme(Bytes device, Bytes host) {
  engine::EngineOptions options;
  options.memory.device_memory = device;
  options.memory.host_memory = host;
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  options.memory.host_activations = true;
  options.memory.nvme_activations = true;
  options.vocab_tile = 64;
  return options;
}

class DirectTraining : public testing::Test {
 protected:
  DirectTraining() { model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder_.path()); }

  /// Budgets above the least ones, by these factors.
  engine::EngineOptions budgets(const test::CurveSettings& settings, double device, double host) {
    engine::EngineOptions options = all_on_nvme(kMiB * 64, kMiB * 64);
    const auto times = [](Bytes least, double factor) {
      return align_up(Bytes(static_cast<int64_t>(static_cast<double>(least.count()) * factor)),
                      Bytes(4096));
    };
    const engine::MinimumBudgets of_device =
        least_budgets(settings, test::on_gpu(options, std::make_shared<FakeCuda>()));
    options.memory.device_memory = times(of_device.device, device);
    options.memory.host_memory = times(
        least_budgets(settings, test::on_gpu(options, std::make_shared<FakeCuda>())).host, host);
    return options;
  }

  static test::Curve through_host(const test::CurveSettings& settings,
                                  const engine::EngineOptions& options) {
    return train_curve(settings, test::on_gpu(options, std::make_shared<FakeCuda>()));
  }

  /// Trains with direct reads; the bytes that came by them.
  static int64_t expect_same(test::CurveSettings settings, const engine::EngineOptions& options,
                             const test::Curve& expected, const Machine& machine) {
    int64_t read_directly = 0;
    settings.observe = [&](const engine::EngineReport& report) {
      read_directly += report.traffic.direct;
      EXPECT_EQ(report.traffic, report.planned);
      EXPECT_GE(report.traffic.nvme_read, report.traffic.direct);
    };
    const test::Curve curve = train_curve(settings, machine.direct(options));
    test::expect_same_bits(curve, expected);
    EXPECT_EQ(curve, expected);
    EXPECT_GE(machine.cufile->bytes_read(), read_directly);
    EXPECT_EQ(machine.cufile->live_objects(), 0);
    EXPECT_EQ(machine.gpu->live_objects(), 0);
    return read_directly;
  }

  test::TemporaryFolder folder_;
};

TEST_F(DirectTraining, HasTheSameBitsAsThroughTheHostInAnyBudget) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    int64_t read_directly = 0;
    for (const auto& [device, host] : {std::pair(1.02, 1.1), {1.5, 1.02}, {2.5, 1.5}}) {
      SCOPED_TRACE(
          fmt::format("{}, {} and {} of the least budgets", to_string(dtype), device, host));
      const test::CurveSettings settings = test::gpu_curve(folder_.path(), dtype);
      const engine::EngineOptions options = budgets(settings, device, host);
      read_directly += expect_same(settings, options, through_host(settings, options), Machine());
    }
    EXPECT_GT(read_directly, 0) << to_string(dtype);
  }
}

TEST_F(DirectTraining, WithAnotherPolicyToo) {
  const test::CurveSettings settings = test::gpu_curve(folder_.path(), DType::f32);
  engine::EngineOptions options = budgets(settings, 2.5, 1.5);
  const test::Curve expected = through_host(settings, options);
  options.policy = "lru";
  EXPECT_GT(expect_same(settings, options, expected, Machine()), 0);
}

TEST_F(DirectTraining, GoesThroughTheHostWhereCuFileCannot) {
  const test::CurveSettings settings = test::gpu_curve(folder_.path(), DType::f32);
  const engine::EngineOptions options = budgets(settings, 2.5, 1.5);
  const test::Curve expected = through_host(settings, options);
  for (const FakeCuFile::Options& how : {FakeCuFile::Options{.can_forbid = false},
                                         {.has_driver = false},
                                         {.supports_files = false},
                                         {.can_pin = false}}) {
    EXPECT_EQ(expect_same(settings, options, expected, Machine(how)), 0);
  }
}

TEST_F(DirectTraining, ShortReadsChangeNothing) {
  const test::CurveSettings settings = test::gpu_curve(folder_.path(), DType::f32);
  engine::EngineOptions options = budgets(settings, 2.5, 1.5);
  options.policy = "lru";  // it keeps less in the host than optimal, and reads more directly
  const Machine machine;
  machine.cufile->shorten_reads(4096);
  EXPECT_GT(expect_same(settings, options, through_host(settings, options), machine), 0);
}

TEST_F(DirectTraining, TimelinesShowThem) {
  test::CurveSettings settings = test::gpu_curve(folder_.path(), DType::f32);
  int64_t read_directly = 0;
  settings.observe_timeline = [&](const engine::EngineReport& report,
                                  const engine::StepTimeline& timeline) {
    Bytes shown;
    for (const engine::StepTimeline::Event& event : timeline.events) {
      if (event.name.ends_with(" to the device")) {
        EXPECT_EQ(event.lane, scheduler::Lane::nvme_read);
        shown += event.bytes;
      }
    }
    EXPECT_EQ(shown, Bytes(report.traffic.direct));
    read_directly += report.traffic.direct;
  };
  engine::EngineOptions options = budgets(settings, 2.5, 1.5);
  options.policy = "lru";
  train_curve(settings, Machine().direct(options));
  EXPECT_GT(read_directly, 0);
}

/// Trains until something fails; the message. The run is kept in `nvme`.
std::string train_until_failure(const test::CurveSettings& settings, engine::EngineOptions options,
                                const std::string& nvme, const std::function<void()>& after_load) {
  const model::CheckpointReader reader(settings.model_folder);
  options.dtype = settings.dtype;
  options.shape = settings.shape;
  options.memory.micro_batches = static_cast<int64_t>(settings.steps[0].size());
  options.memory.has_nvme = true;
  options.nvme_budget = options.memory.nvme_budget = kGiB;
  options.nvme_paths = {nvme};
  options.run_id = "failing";
  options.keep_state = true;
  engine::Engine engine(reader.config(), options);
  engine.load(reader, [](Elements) {});
  after_load();
  try {
    for (size_t step = 0; step < settings.steps.size(); ++step) {
      engine::StepNumbers numbers;
      numbers.optimizer.lr = settings.learning_rates[step];
      numbers.optimizer.step = static_cast<int64_t>(step) + 1;
      numbers.micro_batches = options.memory.micro_batches;
      engine.train_step(settings.steps[step], numbers);
    }
  } catch (const IoError& error) {
    return error.what();
  }
  return "";
}

TEST_F(DirectTraining, AReadThatFailsEndsTheRunAndLosesNothing) {
  const test::CurveSettings settings = test::gpu_curve(folder_.path(), DType::f32);
  const test::TemporaryFolder nvme;
  const Machine machine;
  engine::EngineOptions how = machine.direct(budgets(settings, 1.5, 1.1));
  how.policy = "lru";
  const std::string message =
      train_until_failure(settings, how, nvme.path(), [&] { machine.cufile->fail_read(0, -5044); });
  EXPECT_THAT(message, testing::HasSubstr("direct read to the GPU failed: error 5044"));
  EXPECT_THAT(message, testing::HasSubstr(nvme.path()));
  tiers::ExtentStoreOptions options;
  options.paths = {nvme.path()};
  options.run_id = "failing";
  options.disk_budget = kGiB;
  const auto store = tiers::ExtentStore::open(options, aio::IoEngine::create({}));
  EXPECT_TRUE(store->has_generation());
  EXPECT_EQ(store->generation(), 0U) << "that of the load";
  EXPECT_TRUE(store->verify([](Bytes, Bytes) {}).empty());
}

/// The real GPU, where the tests with the label gpu ask for it. Without a direct path the second
/// run goes through the host as the first one does.
TEST(GpuTraining, HasTheSameBitsWithDirectReads) {
  const device::GpuSearch search = test::find_gpu_for_tests();
  if (!search.gpu) {
    GTEST_SKIP() << search.refusal;
  }
  const test::TemporaryFolder folder;
  model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = test::gpu_curve(folder.path(), DType::bf16);
  engine::EngineOptions options = all_on_nvme(kMiB * 4, kMiB * 16);
  engine::use_gpu(options, *search.gpu, {});
  const test::Curve expected = train_curve(settings, options);
  options.verify_reads = false;
  options.direct_reads = true;
  EXPECT_EQ(train_curve(settings, options), expected);
}

class DirectPathChoice : public testing::Test {
 protected:
  engine::DirectPath choose(const Machine& machine, const engine::DirectRequest& request) {
    engine::DirectPath path = choose_beside_files(machine, request);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    return path;
  }

  engine::DirectPath choose_beside_files(const Machine& machine,
                                         const engine::DirectRequest& request) {
    device::cuda::CudaDevice device(machine.gpu, 0, {}, [&](std::string& refusal) {
      refusal = is_missing_ ? "cuFile is not there" : "";
      return is_missing_ ? nullptr : machine.cufile;
    });
    const auto memory = device.allocate(kMiB * 4);
    std::vector<std::byte> host(static_cast<size_t>(kMiB.count()) * 2 + 4096);
    std::byte* const aligned =
        host.data() + (4096 - reinterpret_cast<uintptr_t>(host.data()) % 4096);
    const size_t size = host.size() - 4096;
    engine::DirectPath path = engine::find_direct_path(
        device, *io_, {folder_.path()}, {{memory->data(), 4 << 20}, {aligned, size}}, request);
    EXPECT_TRUE(std::all_of(aligned, aligned + size, [](std::byte b) { return b == std::byte{}; }));
    path.reader.reset();  // before the memory
    return path;
  }
  static engine::DirectRequest unverified() { return {.verifies_reads = false}; }

  bool is_missing_ = false;
  std::unique_ptr<aio::IoEngine> io_ = aio::IoEngine::create({});
  test::TemporaryFolder folder_;
};

TEST_F(DirectPathChoice, SaysWhatItUsesAndWhy) {
  const Machine machine;
  engine::DirectRequest request = unverified();
  request.assumed_share = 0.9;
  const engine::DirectPath path = choose(machine, request);
  EXPECT_EQ(path.share, 0.9);
  EXPECT_THAT(path.description, testing::HasSubstr("not verified: cuFile 1.14, nvidia-fs 2.22"));
  EXPECT_EQ(machine.cufile->bytes_read(), 3 * kMiB.count() * 2);
}

TEST_F(DirectPathChoice, TouchesNoFileThatIsThere) {
  const std::string path = folder_.path() + "/direct-trial";
  std::ofstream(path) << "of the user";
  const Machine machine;
  choose_beside_files(machine, unverified());
  EXPECT_GT(machine.cufile->bytes_read(), 0);
  std::string text;
  std::getline(std::ifstream(path), text);
  EXPECT_EQ(text, "of the user");
  const std::filesystem::directory_iterator files(folder_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(DirectPathChoice, IsTheHostWhereAnythingSpeaksAgainst) {
  const auto why = [&](const Machine& machine, const engine::DirectRequest& request) {
    const engine::DirectPath path = choose(machine, request);
    EXPECT_EQ(path.share, 0);
    EXPECT_THAT(path.description, testing::StartsWith("through host memory: "));
    return path.description;
  };
  using testing::HasSubstr;
  EXPECT_THAT(why(Machine(), {}), HasSubstr("headrace.verify_reads is on"));
  EXPECT_THAT(why(Machine(), {.verifies_reads = false, .has_limits = true}), HasSubstr("limit"));
  EXPECT_THAT(why(Machine({.can_forbid = false}), unverified()), HasSubstr("allow_compat_mode"));
  EXPECT_THAT(why(Machine({.supports_files = false}), unverified()), HasSubstr("file system"));
  Machine damaging;
  damaging.cufile->damage_reads();
  EXPECT_THAT(why(damaging, unverified()), HasSubstr("other bytes"));
  Machine slow;
  slow.cufile->slow_reads(std::chrono::milliseconds(500));
  EXPECT_THAT(why(slow, unverified()), HasSubstr("slower"));
  Machine failing;
  failing.cufile->fail_read(1, -1, EIO);
  EXPECT_THAT(why(failing, unverified()), HasSubstr("direct-trial"));
  aio::IoEngineOptions buffered;
  buffered.direct = false;
  io_ = aio::IoEngine::create(buffered);
  EXPECT_THAT(why(Machine(), unverified()), HasSubstr("page cache"));
  io_ = aio::IoEngine::create({});
  is_missing_ = true;
  EXPECT_THAT(why(Machine(), unverified()), HasSubstr("cuFile is not there"));
}

}  // namespace
}  // namespace headrace
