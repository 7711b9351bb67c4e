#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/io.h"
#include "device/device.h"
#include "engine/direct_path.h"
#include "engine/executor.h"
#include "engine/learned_costs.h"
#include "engine/memory_plan.h"
#include "engine/memory_use.h"
#include "engine/paced_body.h"
#include "engine/state_transfer.h"
#include "engine/step_bodies.h"
#include "engine/step_phases.h"
#include "engine/timeline.h"
#include "model/checkpoint.h"
#include "model/network.h"
#include "model/token_data.h"
#include "scheduler/liveness.h"
#include "scheduler/lower_bound.h"
#include "scheduler/schedule.h"
#include "tiers/arena.h"
#include "tiers/extent_store.h"
#include "tiers/host_memory.h"
#include "tiers/tiered_store.h"

namespace headrace::engine {

/// What compute and memory are taken to reach until a step has been measured, per second.
struct WorkRates {
  double flops = 150e9;        ///< of the network
  double fp8_flops = 0;        ///< of its products in fp8; 0: the same
  double cpu_bytes = 10e9;     ///< optimizer and accumulation on the host
  double device_bytes = 10e9;  ///< the same on the device
};

struct EngineOptions {
  DType dtype = DType::f32;
  model::BatchShape shape;
  MemoryRequest memory;
  WorkRates work;
  std::string policy = "optimal";
  scheduler::LivenessLimits liveness;  ///< of that policy
  int64_t vocab_tile = 4096;
  int64_t block_piece = model::kBlockPiece;  ///< as model::Network
  bool fp8_forward = false;                  ///< as model::Network
  bool pin_memory = true;
  /// Of the device that computes; empty: the CPU.
  std::function<std::unique_ptr<device::Device>()> make_device;
  aio::IoEngineOptions io;
  /// Makes the I/O engine where not empty, in the place of IoEngine::create: how tests put faults
  /// below it.
  std::function<std::unique_ptr<aio::IoEngine>(const aio::IoEngineOptions& options)> make_io;
  std::vector<std::string> nvme_paths;
  std::vector<double> nvme_weights;  ///< share of the data per path, any scale; empty: equal
  std::string run_id;
  std::optional<int> numa_node;    ///< of host memory and optimizer threads; empty: all nodes
  std::optional<int> memory_node;  ///< of host memory alone, where numa_node is empty
  Bytes nvme_budget;
  bool verify_reads = true;
  bool direct_reads = false;        ///< headrace.gpudirect: where proven, see find_direct_path()
  double assumed_direct_share = 0;  ///< as in DirectRequest, for tests
  bool nvme_prewrite = false;
  double link_limit = 0;       ///< bytes per second between host and device, each way; 0: none
  LeastSeconds least_seconds;  ///< empty: operations take what they take
  /// The store's run directories stay, and hold the whole state at each commit; made in nvme_paths
  /// even where nothing lives on nvme. Else they are removed in the end.
  bool keep_state = false;
  bool reopen = false;    ///< with keep_state: the run `run_id` is opened, not made
  bool in_place = false;  ///< headrace.durability: values that are committed are overwritten
};

/// What became of a step's updates during backward.
enum class Speculation : uint8_t {
  none,  ///< the updates came after the norm, or did not depend on it
  held,
  redone,  ///< the step was clipped or skipped
};

/// Key of a generation's run_state that holds a serialized proto::RunState.
inline constexpr const char* kRunStateKey = "run";

/// What one schedule run did, for metrics.
struct EngineReport {
  RunReport run;
  Speculation speculation = Speculation::none;
  /// It had to be compiled first: what was resident was neither so before nor foreseen.
  bool waited_for_schedule = false;
  scheduler::StepBound bound;  ///< busiest lane at measured rates
  tiers::TierTraffic traffic;  ///< bytes of this run
  tiers::TierTraffic planned;  ///< bytes that the schedule moves
  /// What the simulation of the schedule gave before the run, with the costs known then.
  double predicted_seconds = 0;
  StepPhases phases;  ///< of a training step
  MemoryUse memory;   ///< of the schedule
};

/// What the engine is at now, while a step runs.
struct LiveGauges {
  Bytes device_used;  ///< by objects, in the arena
  Bytes host_used;
  int reads_in_flight = 0;  ///< blocks, between nvme and host
  int writes_in_flight = 0;
  tiers::TierTraffic traffic;  ///< bytes since the start
};

/// The last training schedule beside what none could beat, at the rates measured in this run.
struct ScheduleGap {
  Bytes nvme;        ///< moved per step, both directions
  Bytes nvme_bound;  ///< at least
  Bytes link;        ///< between host and device, both directions
  Bytes link_bound;
  double seconds = 0;  ///< simulated
  double seconds_bound = 0;
};

/// The training state of one model in the tiers and the machinery that moves and computes it. Owns
/// device, memory, store and threads. One thread at a time may call it. After an error it must be
/// destroyed.
class Engine {
 public:
  /// Plans memory and throws CapacityError before anything is allocated if it cannot work.
  Engine(const model::ModelConfig& config, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  using Progress = std::function<void(Elements done)>;

  /// The bytes of a proto::RunState, which the trainer makes up.
  using RunState = std::string;
  /// Called once a step's numbers are known and before they are committed.
  using StepEnd = std::function<RunState()>;

  /// Weights from the checkpoint, optimizer state zero.
  void load(const model::CheckpointReader& reader, const Progress& progress,
            const RunState& state = {});
  /// The state of the store's committed generation (see options.reopen), which has the layout
  /// `stored`; `state` describes it in the present layout.
  using ResumeProgress = std::function<void(int64_t done, int64_t total)>;
  void resume(const proto::StateLayout& stored, const std::string& optimizer, const RunState& state,
              const ResumeProgress& progress);
  /// One optimizer step over numbers.micro_batches batches, then a commit of the store where it
  /// commits every step; into `recorder` where there is one.
  EngineReport train_step(const std::vector<model::TokenBatch>& batches, StepNumbers& numbers,
                          const StepEnd& on_end = {}, TimelineRecorder* recorder = nullptr);
  /// Every step ends with a commit of the whole state: all of it lives on nvme, or none is kept.
  bool commits_every_step() const { return checkpoint_.raw.empty(); }
  /// With keep_state, where not every step does that: writes what lives elsewhere to the store and
  /// commits.
  void checkpoint(const RunState& state);
  /// Sum of the losses of the counted labels.
  double evaluate(const model::TokenBatch& batch);
  void save(model::CheckpointWriter& writer, const Progress& progress);

  /// Empty before the first step. Takes a moment for large models.
  std::optional<ScheduleGap> schedule_gap() const;

  const MemoryPlan& plan() const { return plan_; }
  const std::string& io_description() const { return io_description_; }
  /// How what goes from nvme to the device is read, and why; empty where direct reads are not asked
  /// for.
  const std::string& direct_description() const { return direct_.description; }
  /// Who computes attention, and why; empty where there is no choice.
  std::string attention_description() const { return device_->kernels().attention_description(); }
  /// "24.0 MiB pinned, transparent huge pages".
  std::string host_description() const;
  Bytes device_high_water() const;
  Bytes host_high_water() const;
  Bytes bytes_on_disk() const;
  /// The only function that other threads may call meanwhile.
  LiveGauges gauges() const;
  std::vector<std::string> run_directories() const;
  /// Null where nothing lives on nvme and no state is kept.
  tiers::ExtentStore* state_store() const { return extents_.get(); }

 private:
  struct CachedSchedule {
    const StepTrace* trace;
    std::vector<scheduler::Residency> initial;
    scheduler::Schedule schedule;
    MemoryUse memory;  ///< of the schedule
  };
  using SharedSchedule = std::shared_ptr<const CachedSchedule>;

  void allocate_memory(const EngineOptions& options);
  void open_store(const EngineOptions& options);
  void find_direct_path(const EngineOptions& options);
  std::unique_ptr<device::Stream> create_copy_stream(const char* name, double limit);
  void add_objects();
  scheduler::CompileInput compile_input(const StepTrace& trace,
                                        std::vector<scheduler::Residency> initial) const;
  SharedSchedule kept_schedule(const StepTrace& trace,
                               const std::vector<scheduler::Residency>& initial) const;
  SharedSchedule compile_schedule(const StepTrace& trace,
                                  std::vector<scheduler::Residency> initial) const;
  void keep(SharedSchedule schedule);
  std::future<SharedSchedule> compile_next(const CachedSchedule& current) const;
  EngineReport run(const StepTrace& trace, const OperationBody& body,
                   TimelineRecorder* recorder = nullptr);
  bool should_speculate(const StepNumbers& numbers);
  void redo_updates(StepNumbers& numbers, EngineReport& report, TimelineRecorder* recorder);
  void forget_changes();
  void mark();
  double end_step(const RunState& state, EngineReport& report, TimelineRecorder* recorder);
  LearnedCosts& learned_of(const StepTrace& trace);
  void learn(StepTrace& trace, const EngineReport& report, double commit_seconds);
  void commit(const RunState& state);

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<model::Network> network_;
  MemoryPlan plan_;
  std::unique_ptr<scheduler::Policy> policy_;
  scheduler::Rates rates_;

  std::unique_ptr<device::Memory> device_memory_;
  std::unique_ptr<tiers::HostMemory> host_memory_;
  std::unique_ptr<device::HostRegistration> host_registration_;
  std::unique_ptr<tiers::Arena> device_arena_;
  std::unique_ptr<tiers::Arena> host_arena_;
  ComputeScratch scratch_;
  std::shared_ptr<aio::IoEngine> io_;
  std::string io_description_;
  std::shared_ptr<tiers::ExtentStore> extents_;
  DirectPath direct_;
  std::unique_ptr<device::Stream> compute_stream_;
  std::unique_ptr<device::Stream> down_stream_;
  std::unique_ptr<device::Stream> up_stream_;
  std::unique_ptr<tiers::TieredStore> store_;
  std::unique_ptr<StepBodies> bodies_;
  Pace pace_;
  std::unique_ptr<Executor> executor_;

  std::vector<scheduler::Residency> residency_;
  std::map<const StepTrace*, std::vector<SharedSchedule>> schedules_;
  SharedSchedule last_training_;
  std::map<const StepTrace*, LearnedCosts> learned_;
  std::optional<int>
      final_in_a_row_;  ///< steps that were neither clipped nor skipped; at first a guess
  bool in_place_ = false;
  StateTransfer checkpoint_;  ///< empty: the store has everything at the end of a step
  uint64_t generation_ = 0;
};

}  // namespace headrace::engine
