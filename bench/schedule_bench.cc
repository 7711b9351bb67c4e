// Training steps of models from 0.5 to 40 billion parameters, scheduled within plausible budgets by
// every policy: bytes over each boundary and simulated time against the lower bound. Each policy
// runs several steps in a row, and the last is reported with the residency that it found: the
// steady state. Nothing is allocated or moved; rates and times of the hardware are options.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/command_line.h"
#include "base/error.h"
#include "base/seconds.h"
#include "engine/memory_plan.h"
#include "model/network_block.h"
#include "model/shapes.h"
#include "scheduler/direct_reads.h"
#include "scheduler/liveness.h"
#include "scheduler/lower_bound.h"

namespace headrace {
namespace {

struct Options {
  double nvme_read = 6e9;
  double nvme_write = 5e9;
  double link = 25e9;
  double direct_share = 0;
  double flops = 150e12;        ///< sustained, of the device
  double host_memory = 40e9;    ///< bytes per second of the CPU optimizer
  double device_memory = 1e12;  ///< of accumulation on the device
  int64_t sequence = 4096;
  int steps = 4;
  bool overlap = true;     ///< updates during backward, speculative
  bool recompute = false;  ///< the plan chooses what blocks save for backward
  std::string only;
  std::string json;
};

struct Setup {
  std::string name;
  model::ModelConfig config;
  int64_t device_gib = 8;
  int64_t host_gib = 32;
  bool weights_on_nvme = true;
  int64_t micro_batches = 1;
};

struct Row {
  std::string policy;
  scheduler::Schedule schedule;
  scheduler::LowerBound bound;
  scheduler::LowerBound no_parking;
  double seconds = 0;
  double compile_seconds = 0;
};

std::vector<Setup> make_setups() {
  const model::ModelConfig small = model::shape_config("qwen3-0.6b");
  const model::ModelConfig middle = model::shape_config("mistral-7b");
  const model::ModelConfig large = model::shape_config("dense-40b");
  std::vector<Setup> setups;
  for (const int64_t micro_batches : {1, 4}) {
    setups.push_back({"0.6B", small, 2, 6, true, micro_batches});
    setups.push_back({"0.6B in vocabulary tiles", small, 1, 6, true, micro_batches});
    setups.push_back({"7B", middle, 8, 32, true, micro_batches});
    setups.push_back({"7B, weights on host", middle, 8, 48, false, micro_batches});
    setups.push_back({"7B", middle, 24, 64, true, micro_batches});
    setups.push_back({"40B", large, 12, 64, true, micro_batches});
    setups.push_back({"40B", large, 24, 128, true, micro_batches});
    setups.push_back({"40B, weights on host", large, 24, 128, false, micro_batches});
  }
  return setups;
}

double elements_of(const model::ModuleSpec& module) {
  return static_cast<double>(module.count.count());
}

/// 2 operations per weight and token forward, 6 backward with the block recomputed.
engine::WorkEstimate estimate(const model::ModelConfig& config, const Options& options) {
  const auto modules = model::module_specs(config);
  const double token_seconds = static_cast<double>(options.sequence) / options.flops;
  engine::WorkEstimate work;
  work.block_forward = 2 * elements_of(modules[1]) * token_seconds;
  work.block_backward[model::Recompute::block] = 3 * work.block_forward;
  work.head = 6 * elements_of(modules.back()) * token_seconds;
  work.cpu_bytes_per_second = options.host_memory;
  work.device_bytes_per_second = options.device_memory;
  return work;
}

scheduler::Rates rates_of(const Options& options) {
  scheduler::Rates rates;
  rates.nvme_read = options.nvme_read;
  rates.nvme_write = options.nvme_write;
  rates.host_to_device = rates.device_to_host = options.link;
  rates.direct_share = options.direct_share;
  return rates;
}

engine::MemoryPlan plan_of(const Setup& setup, const Options& options) {
  engine::MemoryRequest request;
  request.device_memory = kGiB * setup.device_gib;
  request.host_memory = kGiB * setup.host_gib;
  request.has_nvme = true;
  request.nvme_budget = kGiB * 10000;
  request.nvme_path = "(none)";
  request.offload_param = setup.weights_on_nvme ? Tier::nvme : Tier::host;
  request.offload_optimizer = Tier::nvme;
  request.host_activations = true;
  request.micro_batches = setup.micro_batches;
  request.optimizer_overlap = options.overlap;
  request.rates = rates_of(options);
  engine::NetworkNeeds needs{kMiB * 512, kMiB * 16};
  engine::WorkEstimate work = estimate(setup.config, options);
  const model::BatchShape shape{1, options.sequence};
  if (options.recompute) {
    const model::NetworkBlock block(setup.config, shape, DType::bf16);
    work.block_forward = block.forward_flops().total() / options.flops;
    for (const auto level :
         {model::Recompute::none, model::Recompute::mlp, model::Recompute::block}) {
      needs.saved[level] = block.saved_bytes(level);
      work.block_backward[level] = block.backward_flops(level).total() / options.flops;
    }
  }
  return engine::make_memory_plan(setup.config, DType::bf16, shape, needs, work, request);
}

/// The trace, with its passes marked for the liveness policy.
scheduler::Trace marked_trace(const engine::StepTrace& step) {
  scheduler::Trace trace = step.trace;
  for (size_t i = 0; i < trace.operations.size(); ++i) {
    trace.operations[i].starts_pass =
        step.operations[i].kind == engine::StepKind::embed_forward && step.operations[i].tile == 0;
  }
  return trace;
}

/// DeepSpeed's defaults, for the packed weights of each module.
std::unique_ptr<scheduler::Policy> liveness_policy(const engine::ModelLayout& layout) {
  std::vector<Elements> parameters(layout.objects.size());
  for (const engine::ModuleObjects& module : layout.modules) {
    parameters[index_of(module.weights)] = module.spec.count;
  }
  return scheduler::make_liveness_policy({}, std::move(parameters));
}

Row run_policy(const scheduler::Policy& policy, scheduler::CompileInput input, int steps) {
  Row row;
  row.policy = policy.name();
  for (int step = 0; step < steps; ++step) {
    if (step > 0) {
      input.initial = row.schedule.final;
    }
    const auto begin = std::chrono::steady_clock::now();
    row.schedule = scheduler::add_direct_reads(input, policy.compile(input));
    row.compile_seconds = seconds_since(begin);
  }
  const auto violations = scheduler::check_schedule(input, row.schedule);
  if (!violations.empty()) {
    throw InputError(fmt::format("{} made an unsound schedule: {}", policy.name(), violations[0]));
  }
  row.bound = scheduler::lower_bound(input);
  row.no_parking = scheduler::lower_bound(input, scheduler::Parking::never);
  row.seconds = scheduler::simulate(input, row.schedule).seconds;
  return row;
}

double gib(Bytes bytes) {
  return static_cast<double>(bytes.count()) / static_cast<double>(kGiB.count());
}

double percent_above(double value, double bound) {
  return bound > 0 ? 100 * (value / bound - 1) : 0;
}

void print(const Row& row) {
  const scheduler::Schedule& s = row.schedule;
  const scheduler::LowerBound& b = row.bound;
  fmt::print(
      "  {:<9} {:>7.1f} {:>7.1f} {:>7.1f} {:>5.1f} {:>5.1f} | {:>7.1f} {:>7.1f} {:>7.1f} {:>5.1f} "
      "| "
      "{:>7.2f} {:>7.2f} {:>5.1f} | {:>6.0f}\n",
      row.policy, gib(s.nvme_read), gib(s.nvme_write), gib(b.nvme),
      percent_above(gib(s.nvme_read + s.nvme_write), gib(b.nvme)),
      percent_above(gib(s.nvme_read + s.nvme_write), gib(row.no_parking.nvme)),
      gib(s.host_to_device), gib(s.device_to_host), gib(b.link),
      percent_above(gib(s.host_to_device + s.device_to_host), gib(b.link)), row.seconds, b.seconds,
      percent_above(row.seconds, b.seconds), row.compile_seconds * 1e3);
  if (s.direct > Bytes(0)) {
    fmt::print("            {:.1f} GiB of these straight from nvme to the device\n", gib(s.direct));
  }
}

nlohmann::json to_json(const Setup& setup, const Row& row) {
  const scheduler::Schedule& s = row.schedule;
  const scheduler::LowerBound& b = row.bound;
  return {{"model", setup.name},
          {"device_gib", setup.device_gib},
          {"host_gib", setup.host_gib},
          {"micro_batches", setup.micro_batches},
          {"policy", row.policy},
          {"nvme_read", s.nvme_read.count()},
          {"nvme_write", s.nvme_write.count()},
          {"host_to_device", s.host_to_device.count()},
          {"device_to_host", s.device_to_host.count()},
          {"direct", s.direct.count()},
          {"bound_nvme_read", b.nvme_read.count()},
          {"bound_nvme_write", b.nvme_write.count()},
          {"bound_nvme", b.nvme.count()},
          {"bound_nvme_without_parking", row.no_parking.nvme.count()},
          {"bound_link", b.link.count()},
          {"seconds", row.seconds},
          {"bound_seconds", b.seconds},
          {"compile_seconds", row.compile_seconds}};
}

void run(const Options& options) {
  nlohmann::json results = nlohmann::json::array();
  fmt::print(
      "GiB and seconds of one step, gaps to the lower bound in percent (gap*: to the bound without "
      "parking on the device), compile() in ms\n");
  fmt::print(
      "  {:<9} {:>7} {:>7} {:>7} {:>5} {:>5} | {:>7} {:>7} {:>7} {:>5} | {:>7} {:>7} {:>5} | "
      "{:>6}\n",
      "policy", "read", "write", "bound", "gap", "gap*", "to dev", "to host", "bound", "gap",
      "step", "bound", "gap", "ms");
  for (const Setup& setup : make_setups()) {
    const std::string title =
        fmt::format("{}, device {} GiB, host {} GiB, {} micro-batches", setup.name,
                    setup.device_gib, setup.host_gib, setup.micro_batches);
    if (title.find(options.only) == std::string::npos) {
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    const engine::MemoryPlan plan = plan_of(setup, options);
    const std::chrono::duration<double> planning = std::chrono::steady_clock::now() - begin;
    const engine::StepTrace& step = plan.usual_step();
    const auto saving = [&](model::Recompute level) {
      return std::count(plan.layout.recompute.begin(), plan.layout.recompute.end(), level);
    };
    fmt::print(
        "{}: {} operations, {} vocabulary tiles, updates {} backward, planned in {:.2f} s, blocks "
        "recompute: {} all, {} MLP, {} nothing\n",
        title, step.operations.size(), plan.layout.vocab_tiles,
        plan.speculative ? "during" : "after", planning.count(), saving(model::Recompute::block),
        saving(model::Recompute::mlp), saving(model::Recompute::none));
    const scheduler::Trace trace = marked_trace(step);
    scheduler::CompileInput input;
    input.trace = &trace;
    input.objects = &plan.layout.objects;
    input.budgets = {plan.device_arena, plan.host_arena};
    input.rates = rates_of(options);
    input.initial = plan.homes;
    for (const auto& policy : {scheduler::make_optimal_policy(), scheduler::make_lru_policy(),
                               liveness_policy(plan.layout)}) {
      const Row row = run_policy(*policy, input, options.steps);
      print(row);
      results.push_back(to_json(setup, row));
    }
  }
  if (!options.json.empty()) {
    std::ofstream(options.json) << results.dump(1) << "\n";
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::Options options;
  headrace::Command app("Schedules of training steps against their lower bound");
  app.add_option("--nvme-read", options.nvme_read, "bytes per second")->capture_default_str();
  app.add_option("--nvme-write", options.nvme_write, "bytes per second")->capture_default_str();
  app.add_option("--link", options.link, "bytes per second, each way")->capture_default_str();
  app.add_option("--direct-share", options.direct_share,
                 "of --nvme-read, what reads straight to the device reach; 0: there are none")
      ->capture_default_str();
  app.add_option("--flops", options.flops, "sustained on the device")->capture_default_str();
  app.add_option("--sequence", options.sequence, "tokens of a micro-batch")->capture_default_str();
  app.add_option("--steps", options.steps, "steps in a row; the last is reported")
      ->check_range(1, 100)
      ->capture_default_str();
  app.add_flag("--overlap,!--no-overlap", options.overlap,
               "update during backward (speculative) where the plan finds it faster");
  app.add_flag("--recompute", options.recompute,
               "let the plan choose what blocks save for backward, with durations by FLOP count");
  app.add_option("--only", options.only, "only the setups whose title holds this text");
  app.add_option("--json", options.json, "write the results to this file as well");
  if (const auto exit_code = app.parse(argc, argv)) {
    return *exit_code;
  }
  try {
    headrace::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
