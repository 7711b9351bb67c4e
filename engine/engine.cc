#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/seconds.h"
#include "device/limited_stream.h"
#include "engine/run_plan.h"
#include "tiers/thread_binding.h"

namespace headrace::engine {

namespace {

/// Schedules kept per trace; a steady run alternates between very few residencies.
constexpr size_t kSchedulesKept = 4;

}  // namespace

Engine::Engine(const model::ModelConfig& config, const EngineOptions& options)
    : device_(options.make_device ? options.make_device() : device::make_cpu_device()),
      network_(make_network(config, options, *device_)),
      plan_(plan_memory(*network_, options)),
      policy_(make_policy(options, plan_.layout)),
      rates_(options.memory.rates),
      compute_stream_(device_->create_stream("hr-compute")),
      pace_(options.least_seconds, *compute_stream_) {
  HR_CHECK(device_->is_host_addressable() || plan_.has_device(), "{} cannot work on host memory",
           device_->name());
  allocate_memory(options);
  open_store(options);
  find_direct_path(options);
  down_stream_ = create_copy_stream("hr-to-device", options.link_limit);
  up_stream_ = create_copy_stream("hr-to-host", options.link_limit);
  tiers::TieredStore::Parts parts;
  parts.device_arena = device_arena_.get();
  parts.host_arena = host_arena_.get();
  parts.extents = extents_;
  parts.host_to_device = down_stream_.get();
  parts.device_to_host = up_stream_.get();
  parts.direct = direct_.reader.get();
  store_ = std::make_unique<tiers::TieredStore>(parts);
  add_objects();
  bodies_ = std::make_unique<StepBodies>(plan_.layout, *network_, device_->kernels(),
                                         *compute_stream_, scratch_);
  executor_ = std::make_unique<Executor>(*store_, *compute_stream_);
  executor_->on_cpu_worker([&] { tiers::bind_parallel_threads(options.numa_node); });
}

Engine::~Engine() = default;

void Engine::allocate_memory(const EngineOptions& options) {
  const Bytes fixed = plan_.tokens + plan_.workspace;
  const Bytes host_size = plan_.host_arena + (plan_.has_device() ? Bytes(0) : fixed);
  host_memory_ = std::make_unique<tiers::HostMemory>(
      host_size, options.pin_memory, options.numa_node ? options.numa_node : options.memory_node);
  std::byte* fixed_base = host_memory_->data() + plan_.host_arena.count();
  host_arena_ = std::make_unique<tiers::Arena>(Tier::host, host_memory_->data(), plan_.host_arena);
  if (plan_.has_device()) {
    if (options.pin_memory) {
      host_registration_ = device_->register_host(host_memory_->bytes());
    }
    device_memory_ = device_->allocate(plan_.device_arena + fixed);
    device_arena_ =
        std::make_unique<tiers::Arena>(Tier::device, device_memory_->data(), plan_.device_arena);
    fixed_base = device_memory_->data() + plan_.device_arena.count();
  }
  scratch_.tokens = fixed_base;
  // The last 64 bytes of the token region hold the loss, and a flag of the optimizer.
  scratch_.loss_sum = reinterpret_cast<double*>(fixed_base + plan_.tokens.count() - 64);
  scratch_.not_finite = reinterpret_cast<int32_t*>(scratch_.loss_sum + 1);
  scratch_.workspace = {fixed_base + plan_.tokens.count(), plan_.workspace};
}

void Engine::open_store(const EngineOptions& options) {
  const auto on_nvme = [](const scheduler::ObjectFacts& object) {
    return object.floor == Tier::nvme;
  };
  const bool uses_nvme =
      std::any_of(plan_.layout.objects.begin(), plan_.layout.objects.end(), on_nvme);
  if (!uses_nvme && !options.keep_state) {
    return;
  }
  io_ = options.make_io ? options.make_io(options.io) : aio::IoEngine::create(options.io);
  if (uses_nvme) {
    io_->register_memory({host_memory_->data(), static_cast<size_t>(plan_.host_arena.count())});
    io_description_ = io_->description();
  }
  tiers::ExtentStoreOptions store;
  store.paths = options.nvme_paths;
  store.weights = options.nvme_weights;
  store.run_id = options.run_id;
  store.disk_budget = options.nvme_budget;
  store.verify_reads = options.verify_reads;
  store.prewrite = options.nvme_prewrite;
  store.keep_on_close = options.keep_state;
  if (options.keep_state) {
    checkpoint_ = make_checkpoint(plan_.layout);
  }
  if (options.reopen) {
    extents_ = tiers::ExtentStore::open(store, io_);
    generation_ = extents_->generation();
  } else {
    extents_ = tiers::ExtentStore::create(store, io_);
  }
  in_place_ = options.in_place && commits_every_step();
}

/// While the arenas hold nothing yet.
void Engine::find_direct_path(const EngineOptions& options) {
  if (!options.direct_reads || io_description_.empty() || !plan_.has_device()) {
    return;  // nothing goes from nvme to a device, which the configuration's notes say
  }
  DirectRequest request;
  request.verifies_reads = options.verify_reads;
  request.has_limits = options.io.limits.any() || options.link_limit > 0;
  request.assumed_share = options.assumed_direct_share;
  TrialMemory memory;
  memory.host = {host_memory_->data(), static_cast<size_t>(plan_.host_arena.count())};
  memory.device = {device_memory_->data(), static_cast<size_t>(plan_.device_arena.count())};
  direct_ = engine::find_direct_path(*device_, *io_, extents_->directories(), memory, request);
  rates_.direct_share = direct_.share;
}

std::unique_ptr<device::Stream> Engine::create_copy_stream(const char* name, double limit) {
  auto stream = device_->create_stream(name);
  return limit > 0 ? device::make_limited_stream(std::move(stream), limit) : std::move(stream);
}

void Engine::add_objects() {
  for (size_t i = 0; i < plan_.layout.objects.size(); ++i) {
    const scheduler::ObjectFacts& object = plan_.layout.objects[i];
    const ObjectId id = store_->add({object.name, object.size, object.home.has_value()});
    HR_CHECK(index_of(id) == i, "object {} got id {}", i, index_of(id));
  }
  residency_ = plan_.homes;
  for (const scheduler::Residency& home : residency_) {
    store_->place(home.object, home.tier, home.offset);
  }
}

scheduler::CompileInput Engine::compile_input(const StepTrace& trace,
                                              std::vector<scheduler::Residency> initial) const {
  return engine::compile_input(plan_, trace, rates_, std::move(initial));
}

Engine::SharedSchedule Engine::kept_schedule(
    const StepTrace& trace, const std::vector<scheduler::Residency>& initial) const {
  const auto kept = schedules_.find(&trace);
  if (kept == schedules_.end()) {
    return nullptr;
  }
  const auto found = std::find_if(kept->second.begin(), kept->second.end(),
                                  [&](const auto& each) { return each->initial == initial; });
  return found == kept->second.end() ? nullptr : *found;
}

Engine::SharedSchedule Engine::compile_schedule(const StepTrace& trace,
                                                std::vector<scheduler::Residency> initial) const {
  scheduler::Schedule schedule = policy_->compile(compile_input(trace, initial));
  const MemoryUse memory = memory_use(plan_, schedule);
  return std::make_shared<CachedSchedule>(
      CachedSchedule{&trace, std::move(initial), std::move(schedule), memory});
}

void Engine::keep(SharedSchedule schedule) {
  auto& kept = schedules_[schedule->trace];
  if (kept.size() == kSchedulesKept) {
    kept.erase(kept.begin());
  }
  kept.push_back(std::move(schedule));
}

/// For when the trace comes again, on a thread of its own. Nothing where that is kept already, or
/// where this run is one of those that change what schedules are compiled from.
std::future<Engine::SharedSchedule> Engine::compile_next(const CachedSchedule& current) const {
  const std::vector<scheduler::Residency>& left = current.schedule.final;
  const auto learned = learned_.find(current.trace);
  if (learned == learned_.end() || learned->second.steps() < kStepsToLearn ||
      kept_schedule(*current.trace, left) != nullptr) {
    return {};
  }
  return std::async(std::launch::async,
                    [this, &current, &left] { return compile_schedule(*current.trace, left); });
}

EngineReport Engine::run(const StepTrace& trace, const OperationBody& body,
                         TimelineRecorder* recorder) {
  EngineReport report;
  SharedSchedule cached = kept_schedule(trace, residency_);
  report.waited_for_schedule = cached == nullptr;
  if (cached == nullptr) {
    cached = compile_schedule(trace, residency_);
    keep(cached);
  }
  std::future<SharedSchedule> next = compile_next(*cached);
  const scheduler::Schedule& schedule = cached->schedule;
  const scheduler::CompileInput input = compile_input(trace, cached->initial);
  const tiers::TierTraffic before = store_->traffic();
  report.planned = {schedule.nvme_read.count(), schedule.nvme_write.count(),
                    schedule.host_to_device.count(), schedule.device_to_host.count(),
                    schedule.direct.count()};
  report.predicted_seconds = scheduler::simulate(input, schedule).seconds;
  report.run =
      executor_->run(trace.trace, schedule, pace_.wrap(trace.trace, body), recorder != nullptr);
  if (recorder != nullptr) {
    recorder->add_run(*report.run.record, trace.trace, schedule, plan_.layout.objects);
    report.run.record.reset();
  }
  report.traffic = store_->traffic();
  report.traffic -= before;
  report.bound = scheduler::channel_bound(input, schedule);
  report.memory = cached->memory;
  residency_ = schedule.final;
  if (next.valid()) {
    keep(next.get());
  }
  if (&trace == &plan_.training || (plan_.speculative && &trace == &*plan_.speculative)) {
    last_training_ = cached;
  }
  return report;
}

std::optional<ScheduleGap> Engine::schedule_gap() const {
  if (last_training_ == nullptr) {
    return std::nullopt;
  }
  const scheduler::Schedule& schedule = last_training_->schedule;
  const scheduler::CompileInput input =
      compile_input(*last_training_->trace, last_training_->initial);
  const scheduler::LowerBound bound = scheduler::lower_bound(input);
  ScheduleGap gap;
  gap.nvme = schedule.nvme_read + schedule.nvme_write;
  gap.nvme_bound = bound.nvme;
  gap.link = schedule.host_to_device + schedule.device_to_host;
  gap.link_bound = bound.link;
  gap.seconds = scheduler::simulate(input, schedule).seconds;
  gap.seconds_bound = bound.seconds;
  return gap;
}

void Engine::load(const model::CheckpointReader& reader, const Progress& progress,
                  const RunState& state) {
  if (extents_ != nullptr) {
    extents_->prepare_for_writing();
  }
  run(plan_.load, bodies_->load(plan_.load, reader, progress));
  if (commits_every_step()) {
    commit(state);
  }
  mark();
}

EngineReport Engine::train_step(const std::vector<model::TokenBatch>& batches, StepNumbers& numbers,
                                const StepEnd& on_end, TimelineRecorder* recorder) {
  const bool speculate = should_speculate(numbers);
  StepTrace& trace = speculate ? *plan_.speculative : plan_.training;
  EngineReport report = run(trace, bodies_->training(trace, batches, numbers), recorder);
  report.predicted_seconds += learned_of(trace).commit_seconds();
  report.phases = phases_of(trace, report.run.operation_ends, report.run.split.total);
  if (speculate) {
    report.speculation = Speculation::held;
    if (numbers.clipped || numbers.skipped) {
      report.speculation = Speculation::redone;
      redo_updates(numbers, report, recorder);
    }
  }
  const bool is_final = !numbers.clipped && !numbers.skipped;
  final_in_a_row_ = is_final ? *final_in_a_row_ + 1 : 0;
  ++generation_;
  const RunState state = on_end ? on_end() : RunState();
  learn(trace, report, end_step(state, report, recorder));
  report.memory.on_nvme = bytes_on_disk();
  return report;
}

/// Norms change slowly, and a loss scale that was too large is often still too large: a step is
/// likely to end as those before did. A wrong guess costs a second pass of updates and its wear.
bool Engine::should_speculate(const StepNumbers& numbers) {
  constexpr int kEnough = 2;
  if (!final_in_a_row_) {
    const bool is_likely_final = numbers.gradient_clipping == 0 && numbers.loss_scale == 1;
    final_in_a_row_ = is_likely_final ? kEnough : 0;
  }
  return plan_.speculative && *final_in_a_row_ >= kEnough;
}

/// The gradients are still there; so are the values before the step.
void Engine::redo_updates(StepNumbers& numbers, EngineReport& report, TimelineRecorder* recorder) {
  forget_changes();
  if (numbers.skipped && plan_.layout.placement.weights == Tier::nvme) {
    numbers.host_updates_finite = true;
    return;  // every value that the step has changed is back
  }
  const EngineReport redo = run(*plan_.redo, bodies_->redo(*plan_.redo, numbers), recorder);
  report.run.split += redo.run.split;
  report.phases.step += redo.run.split.total;
  report.bound += redo.bound;
  for (size_t lane = 0; lane < redo.run.busy.size(); ++lane) {
    report.run.busy[lane] += redo.run.busy[lane];
  }
  report.traffic += redo.traffic;
  report.planned += redo.planned;
  report.predicted_seconds += redo.predicted_seconds;
}

/// Takes what is on nvme back to the end of the last step, and the copies above it away.
void Engine::forget_changes() {
  extents_->roll_back();
  std::erase_if(residency_, [&](const scheduler::Residency& copy) {
    const bool is_undone = is_undone_with_nvme(plan_, copy);
    if (is_undone) {
      store_->drop(copy.object, copy.tier);
    }
    return is_undone;
  });
}

/// Returns the seconds that the commit took.
double Engine::end_step(const RunState& state, EngineReport& report, TimelineRecorder* recorder) {
  if (extents_ == nullptr) {
    return 0;
  }
  double seconds = 0;
  if (commits_every_step()) {
    const auto begin = std::chrono::steady_clock::now();
    commit(state);
    const auto end = std::chrono::steady_clock::now();
    seconds = seconds_between(begin, end);
    if (recorder != nullptr) {
      recorder->add_commit(begin, end);
    }
    report.run.split.nvme_write += seconds;
    report.run.split.total += seconds;
    report.phases.step += seconds;
  }
  mark();
  return seconds;
}

/// What is on nvme now is what a step that was guessed wrong goes back to.
void Engine::mark() {
  if (plan_.speculative) {
    extents_->mark();
  }
}

double Engine::evaluate(const model::TokenBatch& batch) {
  double loss_sum = 0;
  run(plan_.evaluation, bodies_->evaluation(plan_.evaluation, batch, loss_sum));
  return loss_sum;
}

void Engine::save(model::CheckpointWriter& writer, const Progress& progress) {
  run(plan_.save, bodies_->save(plan_.save, writer, progress));
}

LearnedCosts& Engine::learned_of(const StepTrace& trace) {
  return learned_.try_emplace(&trace, rates_).first->second;
}

/// What was measured replaces the estimates. Later steps only refine what is predicted: schedules
/// are compiled anew after a trace's first run and after its second, the first one in warm memory.
void Engine::learn(StepTrace& trace, const EngineReport& report, double commit_seconds) {
  LearnedCosts& costs = learned_of(trace);
  costs.note(report.run, commit_seconds);
  if (costs.steps() <= kStepsToLearn) {
    schedules_.clear();
  }
  costs.apply_to(trace.trace);
  costs.apply_to(rates_);
}

std::string Engine::host_description() const {
  const std::string pages = host_memory_->huge_pages();
  return format_bytes(host_memory_->size()) + (host_memory_->is_pinned() ? " pinned" : "") +
         (pages == "none" ? ", no huge pages" : ", " + pages + " huge pages");
}

Bytes Engine::device_high_water() const {
  return device_arena_ != nullptr ? device_arena_->high_water() : Bytes(0);
}

Bytes Engine::host_high_water() const {
  return host_arena_->high_water();
}

LiveGauges Engine::gauges() const {
  LiveGauges gauges;
  gauges.device_used = device_arena_ != nullptr ? device_arena_->used() : Bytes(0);
  gauges.host_used = host_arena_->used();
  gauges.traffic = store_->traffic();
  if (io_ != nullptr) {
    const aio::IoStatistics statistics = io_->statistics();
    gauges.reads_in_flight = statistics.reads_in_flight;
    gauges.writes_in_flight = statistics.writes_in_flight;
  }
  return gauges;
}

Bytes Engine::bytes_on_disk() const {
  return extents_ != nullptr ? extents_->bytes_on_disk() : Bytes(0);
}

std::vector<std::string> Engine::run_directories() const {
  return extents_ != nullptr ? extents_->directories() : std::vector<std::string>();
}

}  // namespace headrace::engine
