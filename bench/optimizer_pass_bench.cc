// The optimizer pass from nvme to nvme, through the schedule, the tiers and the kernel of a
// training step, against the two limits it can have: the drive moving the same bytes with nothing
// computed, and the kernel updating the same elements in memory. The three alternate within one
// run.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "aio/io.h"
#include "base/command_line.h"
#include "base/error.h"
#include "base/median.h"
#include "base/random.h"
#include "base/seconds.h"
#include "engine/config/settings.h"
#include "engine/executor.h"
#include "engine/learned_costs.h"
#include "engine/master_weights.h"
#include "engine/state_format.h"
#include "tiers/host_memory.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string path;
  std::string host_memory = "1GiB";
  int64_t elements = int64_t{128} << 20;
  int64_t shard = int64_t{4} << 20;
  std::string block = "1MiB";
  int depth = 0;
  int rounds = 5;
  bool verify = true;
  std::string policy = "optimal";
  std::string json;
};

/// Split master, fp32 moments, fp32 gradients: bf16 training's default.
constexpr engine::StateFormat kFormat{engine::MasterPlace::split, 2, DType::f32};
/// Of an element over nvme, where nothing stays in memory: 16 read, 12 written.
constexpr int64_t kBytesToMove = 28;

engine::UpdateShard arrays_of(std::byte* state, std::byte* gradient, std::byte* weights,
                              Elements count) {
  const engine::StateFormat::Offsets offsets = kFormat.offsets(count);
  engine::UpdateShard arrays;
  arrays.master_low = reinterpret_cast<uint16_t*>(state + offsets.master.count());
  arrays.weight = weights;
  arrays.moment1 = state + offsets.moment[0].count();
  arrays.moment2 = state + offsets.moment[1].count();
  arrays.gradient = gradient;
  arrays.count = count;
  return arrays;
}

void fill(const engine::UpdateShard& arrays, std::byte* gradient) {
  std::vector<float> values(static_cast<size_t>(arrays.count.count()));
  Random random(1, 0);
  for (float& value : values) {
    value = 0.1F * (uniform_from(random.next_u32()) - 0.5F);
  }
  std::copy(values.begin(), values.end(), reinterpret_cast<float*>(gradient));
  std::fill_n(static_cast<float*>(arrays.moment1), values.size(), 0.0F);
  std::fill_n(static_cast<float*>(arrays.moment2), values.size(), 0.0F);
  engine::set_master(arrays, 0, values);
}

/// Persistent objects of every shard and the traces over them.
struct Program {
  explicit Program(const Options& options) : count(options.shard) {
    const int64_t shards = options.elements / options.shard;
    const auto add = [&](const std::string& name, Bytes size) {
      objects.push_back({name, align_up(size, Bytes(4096)), Tier::nvme, Tier::nvme});
      return ObjectId{static_cast<uint32_t>(objects.size() - 1)};
    };
    for (int64_t i = 0; i < shards; ++i) {
      const ObjectId state = add(fmt::format("state.{}", i), kFormat.offsets(count).size);
      const ObjectId gradient = add(fmt::format("gradient.{}", i), bytes_for(count, DType::f32));
      const ObjectId weights = add(fmt::format("weights.{}", i), bytes_for(count, DType::bf16));
      using scheduler::Access;
      const auto operation = [&](Access access, Access of_gradient) {
        return scheduler::Operation{fmt::format("shard.{}", i),
                                    scheduler::Lane::cpu_optimizer,
                                    {{state, Tier::host, access, false},
                                     {gradient, Tier::host, of_gradient, false},
                                     {weights, Tier::host, access, false}},
                                    static_cast<double>(count.count()) * 0.4e-9};
      };
      load.operations.push_back(operation(Access::write, Access::write));
      pass.operations.push_back(operation(Access::update, Access::read));
    }
  }

  Elements count;  ///< of a shard
  std::vector<scheduler::ObjectFacts> objects;
  scheduler::Trace load{"load", {}};
  scheduler::Trace pass{"pass", {}};
};

/// The drive alone: reads and writes of whole extents in the given proportion, through the same
/// engine and memory, as deep as the engine goes.
class Drive {
 public:
  static constexpr Bytes kExtent{int64_t{16} << 20};

  Drive(const Options& options, const std::shared_ptr<aio::IoEngine>& io, tiers::HostMemory& memory,
        Bytes size)
      : io_(io),
        memory_(memory),
        name_(std::filesystem::path(options.path) / "optimizer-pass-bench.drive"),
        file_size_(align_up(size, kExtent)) {
    if (std::filesystem::exists(name_)) {
      throw InputError(name_.string() + " exists; remove it, or use another folder");
    }
    file_ = io_->open(name_, true);
    std::filesystem::remove(name_);  // gone however this ends; the engine keeps it open
    io_->allocate(file_, file_size_);
    move(0, file_size_.count());
  }

  /// Of each direction alone and of both together.
  scheduler::Rates rates() {
    const int64_t half = file_size_.count() / 2;
    const auto per_second = [](int64_t bytes, double seconds) {
      return static_cast<double>(bytes) / seconds;
    };
    scheduler::Rates rates;
    rates.nvme_read = per_second(half, move(half, 0));
    rates.nvme_write = per_second(half, move(0, half));
    rates.nvme_both = per_second(2 * half, move(half, half));
    return rates;
  }

  /// Seconds to read and write so many bytes at once.
  double move(int64_t read, int64_t written) {
    const int64_t reads = read / kExtent.count();
    const int64_t writes = written / kExtent.count();
    const int64_t file_extents = file_size_ / kExtent;
    const int64_t slots = memory_.size() / kExtent;
    std::deque<Completion> flying;
    const auto begin = Clock::now();
    int64_t sent_reads = 0;
    for (int64_t i = 0; i < reads + writes; ++i) {
      // Reads and writes in turn, as far as each has gone of its share.
      const bool is_read = sent_reads * (reads + writes) <= i * reads && sent_reads < reads;
      const int64_t place = is_read ? sent_reads++ : file_extents / 2 + (i - sent_reads);
      if (static_cast<int64_t>(flying.size()) == slots) {
        flying.front().wait();
        flying.pop_front();
      }
      flying.push_back(
          io_->submit({.operation = is_read ? aio::IoOperation::read : aio::IoOperation::write,
                       .io_class = is_read ? aio::IoClass::prefetch : aio::IoClass::write_back,
                       .file = file_,
                       .offset = place % file_extents * kExtent.count(),
                       .data = memory_.data() + i % slots * kExtent.count(),
                       .length = kExtent}));
    }
    for (const Completion& end : flying) {
      end.wait();
    }
    return seconds_since(begin);
  }

 private:
  std::shared_ptr<aio::IoEngine> io_;
  tiers::HostMemory& memory_;
  std::filesystem::path name_;
  Bytes file_size_;
  aio::FileId file_{};
};

/// What a training step has around its optimizer pass. `rates`: as a probe gives them.
class Pass {
 public:
  Pass(const Options& options, const std::shared_ptr<aio::IoEngine>& io, tiers::HostMemory& memory,
       const scheduler::Rates& rates)
      : program_(options),
        device_(device::make_cpu_device()),
        stream_(device_->create_stream("unused")),
        arena_(Tier::host, memory.data(), memory.size()),
        policy_(options.policy == "lru" ? scheduler::make_lru_policy()
                                        : scheduler::make_optimal_policy()),
        rates_(rates) {
    tiers::ExtentStoreOptions store;
    store.paths = {options.path};
    store.disk_budget = kGiB * 1024;
    store.verify_reads = options.verify;
    extents_ = tiers::ExtentStore::create(store, io);
    tiers::TieredStore::Parts parts;
    parts.host_arena = &arena_;
    parts.extents = extents_;
    parts.host_to_device = stream_.get();
    parts.device_to_host = stream_.get();
    store_ = std::make_unique<tiers::TieredStore>(parts);
    for (const scheduler::ObjectFacts& object : program_.objects) {
      store_->add({object.name, object.size, true});
    }
    executor_ = std::make_unique<engine::Executor>(*store_, *stream_);
    run(program_.load, [&](uint32_t, engine::UseBytes uses) {
      fill(arrays_of(uses[0].data(), uses[1].data(), uses[2].data(), program_.count),
           uses[1].data());
    });
    extents_->commit(generation_++, {});
  }

  struct Result {
    double seconds = 0;         ///< of the pass
    double predicted = 0;       ///< what the schedule's simulation says of `seconds`
    double commit_seconds = 0;  ///< of the sync that makes it durable, after it
    int64_t read = 0;
    int64_t written = 0;
  };

  Result step() {
    const tiers::TierTraffic before = store_->traffic();
    engine::UpdateOptions update;
    update.step = ++step_;
    auto begin = Clock::now();
    const engine::RunReport report = run(program_.pass, [&](uint32_t, engine::UseBytes uses) {
      engine::update(update,
                     arrays_of(uses[0].data(), uses[1].data(), uses[2].data(), program_.count));
    });
    Result result;
    result.seconds = seconds_since(begin);
    result.predicted = predicted_;
    costs_.note(report, 0);
    costs_.apply_to(program_.pass);
    costs_.apply_to(rates_);
    begin = Clock::now();
    extents_->commit(generation_++, {});
    result.commit_seconds = seconds_since(begin);
    const tiers::TierTraffic after = store_->traffic();
    result.read = after.nvme_read - before.nvme_read;
    result.written = after.nvme_write - before.nvme_write;
    return result;
  }

 private:
  /// With what earlier passes took, as a training run learns it.
  engine::RunReport run(const scheduler::Trace& trace, const engine::OperationBody& body) {
    scheduler::CompileInput input;
    input.trace = &trace;
    input.objects = &program_.objects;
    input.budgets.host = arena_.capacity();
    input.rates = rates_;
    input.initial = residency_;
    const scheduler::Schedule schedule = policy_->compile(input);
    predicted_ = scheduler::simulate(input, schedule).seconds;
    engine::RunReport report = executor_->run(trace, schedule, body);
    residency_ = schedule.final;
    return report;
  }

  Program program_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  tiers::Arena arena_;
  std::unique_ptr<scheduler::Policy> policy_;
  std::shared_ptr<tiers::ExtentStore> extents_;
  std::unique_ptr<tiers::TieredStore> store_;
  std::unique_ptr<engine::Executor> executor_;
  scheduler::Rates rates_;
  engine::LearnedCosts costs_{rates_};
  std::vector<scheduler::Residency> residency_;
  double predicted_ = 0;
  uint64_t generation_ = 1;
  int64_t step_ = 0;
};

/// The kernel alone, over shards that stay in memory.
class Kernel {
 public:
  Kernel(const Options& options, tiers::HostMemory& memory) : count_(options.shard) {
    const Bytes state = align_up(kFormat.offsets(count_).size, Bytes(4096));
    const Bytes gradient = bytes_for(count_, DType::f32);
    const Bytes shard = state + gradient + align_up(bytes_for(count_, DType::bf16), Bytes(4096));
    for (int64_t i = 0; i < memory.size() / shard; ++i) {
      std::byte* const base = memory.data() + (shard * i).count();
      shards_.push_back(
          arrays_of(base, base + state.count(), base + (state + gradient).count(), count_));
      fill(shards_.back(), base + state.count());
    }
  }

  /// Seconds to update so many elements.
  double update(int64_t elements) {
    engine::UpdateOptions options;
    options.step = 100;
    const auto begin = Clock::now();
    for (int64_t i = 0; i < elements / count_.count(); ++i) {
      engine::update(options, shards_[static_cast<size_t>(i) % shards_.size()]);
    }
    return seconds_since(begin);
  }

 private:
  Elements count_;
  std::vector<engine::UpdateShard> shards_;
};

void run(const Options& options) {
  aio::IoEngineOptions io_options;
  io_options.block_size = parse_bytes(options.block, "--block");
  io_options.adaptive_depth = options.depth == 0;
  io_options.queue_depth = options.depth > 0 ? options.depth : engine::AioSettings().queue_depth;
  const std::shared_ptr<aio::IoEngine> io = aio::IoEngine::create(io_options);
  const Bytes budget = parse_bytes(options.host_memory, "--host-memory");
  tiers::HostMemory pass_memory(budget, true);
  tiers::HostMemory other_memory(budget, true);
  io->register_memory(pass_memory.bytes());
  io->register_memory(other_memory.bytes());
  Drive drive(options, io, other_memory, Bytes(options.elements * kBytesToMove));
  const scheduler::Rates rates = drive.rates();
  Pass pass(options, io, pass_memory, rates);
  Kernel kernel(options, other_memory);
  pass.step();  // the store has grown to both generations, the memory is in place
  pass.step();  // planned with what the first one took
  const Pass::Result steady = pass.step();

  std::vector<double> pass_rates;
  std::vector<double> drive_rates;
  std::vector<double> kernel_rates;
  std::vector<double> ratios;
  std::vector<double> with_commit;
  const auto per_element =
      static_cast<double>(steady.read + steady.written) / static_cast<double>(options.elements);
  fmt::print("{} elements in shards of {}, {:.1f} bytes each over nvme, {} of host memory; {}\n",
             options.elements, options.shard, per_element, format_bytes(budget), io->description());
  fmt::print("the drive alone: read {:.3f} GB/s, write {:.3f}, both at once {:.3f}\n",
             rates.nvme_read / 1e9, rates.nvme_write / 1e9, rates.nvme_both / 1e9);
  for (int round = 0; round < options.rounds; ++round) {
    const Pass::Result result = pass.step();
    const double bytes = static_cast<double>(result.read + result.written);
    pass_rates.push_back(bytes / result.seconds);
    drive_rates.push_back(bytes / drive.move(result.read, result.written));
    kernel_rates.push_back(bytes / kernel.update(options.elements));
    const double limit = std::min(drive_rates.back(), kernel_rates.back());
    ratios.push_back(pass_rates.back() / limit);
    with_commit.push_back(bytes / (result.seconds + result.commit_seconds) / limit);
    fmt::print(
        "  round {}: pass {:.3f} GB/s, drive {:.3f}, kernel {:.3f}, ratio {:.3f} "
        "({:.3f} with the sync of the commit); predicted {:.3f} of the seconds\n",
        round + 1, pass_rates.back() / 1e9, drive_rates.back() / 1e9, kernel_rates.back() / 1e9,
        ratios.back(), with_commit.back(), result.predicted / result.seconds);
  }
  fmt::print("optimizer pass {:.3f} GB/s, limit {:.3f} GB/s, ratio {:.3f} ({:.3f} with the sync)\n",
             median(pass_rates) / 1e9, std::min(median(drive_rates), median(kernel_rates)) / 1e9,
             median(ratios), median(with_commit));
  if (!options.json.empty()) {
    std::ofstream(options.json) << nlohmann::json{{"name", "optimizer pass, nvme to nvme"},
                                                  {"ours", median(pass_rates)},
                                                  {"other", std::min(median(drive_rates),
                                                                     median(kernel_rates))},
                                                  {"ratio", median(ratios)},
                                                  {"ratio_with_sync", median(with_commit)},
                                                  {"unit", "bytes per second"}}
                                << "\n";
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::Options options;
  headrace::Command app("The optimizer pass from nvme to nvme against its limits");
  app.add_option("path", options.path, "folder on the drive")->required();
  app.add_option("--host-memory", options.host_memory,
                 "arena of the pass; the limits take another");
  app.add_option("--elements", options.elements, "weights in all");
  app.add_option("--shard", options.shard, "weights updated at a time");
  app.add_option("--block", options.block, "bytes per I/O part");
  app.add_option(
      "--depth", options.depth,
      "I/O parts in flight; 0: looked for while it runs, as training without aio.queue_depth does");
  app.add_option("--rounds", options.rounds, "alternations");
  app.add_option("--policy", options.policy, "of the schedule")->check_one_of({"optimal", "lru"});
  app.add_flag("--verify,!--no-verify", options.verify, "check the checksums of reads");
  app.add_option("--json", options.json, "file for the result");
  if (const auto exit_code = app.parse(argc, argv)) {
    return *exit_code;
  }
  try {
    headrace::run(options);
  } catch (const headrace::Error& error) {
    fmt::print(stderr, "optimizer_pass_bench: {}\n", error.what());
    return headrace::exit_code(error.kind());
  }
  return 0;
}
