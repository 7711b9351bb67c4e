#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/io.h"
#include "base/dtype.h"
#include "base/units.h"
#include "device/gpu.h"
#include "engine/accumulation_order.h"
#include "engine/optimizer/update.h"
#include "engine/state_format.h"
#include "model/recompute.h"
#include "scheduler/liveness.h"

// What a run will do, after ds_config.json, the command line and the "auto" rules have been put
// together by resolve() (engine/config/resolve.h). Plain values.

namespace headrace::engine {

/// train = micro * accumulation_steps * ranks.
struct BatchSettings {
  int64_t train = 1;  ///< sequences per optimizer step, over all ranks
  int64_t micro = 1;  ///< sequences per forward and backward pass of one rank
  int64_t accumulation_steps = 1;
};

enum class SchedulerKind : uint8_t { constant, warmup, warmup_decay, warmup_cosine };
enum class WarmupShape : uint8_t { logarithmic, linear };

/// Fields that the kind does not use keep their defaults.
struct SchedulerSettings {
  SchedulerKind kind = SchedulerKind::constant;
  double warmup_min_lr = 0;  ///< warmup, warmup_decay
  double warmup_max_lr = 0;  ///< warmup, warmup_decay; the optimizer's lr where not given
  int64_t warmup_steps = 0;
  WarmupShape warmup_shape = WarmupShape::logarithmic;
  int64_t total_steps = 0;      ///< warmup_decay, warmup_cosine
  double warmup_min_ratio = 0;  ///< warmup_cosine: share of the optimizer's lr
  double cos_min_ratio = 1e-4;  ///< warmup_cosine
};

/// Static 1 unless training in fp16.
struct LossScaleSettings {
  bool dynamic = false;
  double initial = 1;  ///< static: the scale
  double min = 1;
  int64_t window_steps = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
};

enum class OffloadDevice : uint8_t { none, cpu, nvme };

struct OffloadSettings {
  int zero_stage = 0;
  OffloadDevice weights = OffloadDevice::none;
  OffloadDevice optimizer = OffloadDevice::none;
  /// Share of its state that is offloaded, the rest being on the device; unset: the plan's choice.
  std::optional<double> optimizer_ratio;
  OffloadDevice activations = OffloadDevice::none;  ///< slowest tier they may go to
  bool pin_memory = true;                           ///< where a GPU is present
  Elements sub_group{1'000'000'000};                ///< updated at a time, per rank
  /// Folders for files; empty only where nothing may go to nvme.
  std::vector<std::string> nvme_paths;

  bool uses_nvme() const {
    return weights == OffloadDevice::nvme || optimizer == OffloadDevice::nvme ||
           activations == OffloadDevice::nvme;
  }
};

/// Unset: from what the machine has free.
struct BudgetSettings {
  std::optional<Bytes> device;
  std::optional<Bytes> host;
  std::optional<Bytes> nvme;  ///< unset: no limit but the free space
};

enum class IoBackendChoice : uint8_t { automatic, io_uring, thread_pool };

struct AioSettings {
  Bytes block_size{1 << 20};
  int queue_depth = 16;         ///< requests in flight per thread
  bool adaptive_depth = false;  ///< queue_depth is where it starts
  int threads = 1;              ///< a ring needs none: there it multiplies queue_depth
  IoBackendChoice backend = IoBackendChoice::automatic;
  bool verify_reads = true;
  bool direct = false;  ///< from nvme straight to the GPU, where that is proven to work
  aio::SubmissionMode submission = aio::SubmissionMode::interrupt;
  bool prewrite = false;            ///< new file space is written once ahead of its use
  std::optional<Bytes> read_limit;  ///< per second, all paths together
  std::optional<Bytes> write_limit;
  std::optional<Bytes> limit;  ///< of both together

  int requests_in_flight() const { return queue_depth * threads; }
};

enum class PolicyKind : uint8_t { optimal, lru, liveness };
/// Tier in which operations find their objects.
enum class ComputePlace : uint8_t { host, device };

enum class Durability : uint8_t {
  step,     ///< every step leaves a whole generation on disk, new values beside the old ones
  in_place  ///< half the space; a crash during an update needs a snapshot to go back to
};

/// What stays of a run on disk.
struct KeepingSettings {
  Durability durability = Durability::step;
  int64_t save_interval = 0;  ///< steps between snapshots; 0: none
  int64_t keep_last = 2;      ///< automatic snapshots that stay; 0: all
  std::string run_dir;        ///< for state that does not live on nvme; empty: the output folder
  bool keep_run = true;       ///< the run directory stays when the run is done
};

/// A block of ds_config.json that asks for reports.
struct MonitorSettings {
  bool enabled = false;
  std::string output_path;  ///< of the folder; empty: the current one
  std::string job_name;     ///< its subfolder

  bool operator==(const MonitorSettings&) const = default;
};

struct Settings {
  BatchSettings batch;
  DType dtype = DType::f32;  ///< of weights, activations and fresh gradients
  UpdateOptions optimizer;   ///< step and gradient_scale are set for each step, lr by the schedule
  StateRequest state;
  bool fp32_gradients = false;  ///< sums of micro-batches stay in fp32 after the step's last one
  SchedulerSettings scheduler;
  LossScaleSettings loss_scale;
  double gradient_clipping = 1;      ///< largest global norm; 0: off
  bool skip_nonfinite_steps = true;  ///< a step whose gradients are not finite changes nothing
  int64_t max_skipped_steps = 100;   ///< in a row, then the training stops
  OffloadSettings offload;
  scheduler::LivenessLimits liveness;  ///< read by the liveness policy only
  BudgetSettings budgets;
  AioSettings aio;
  std::optional<Bytes> link_limit;  ///< per second between host and device, each way
  PolicyKind policy = PolicyKind::optimal;
  ComputePlace compute = ComputePlace::host;
  device::GpuSearch gpu{std::nullopt, "none was looked for"};  ///< on this machine
  bool tf32 = false;  ///< fp32 products of a GPU may round their operands
  device::GraphUse cuda_graphs = device::GraphUse::measured;
  device::AttentionChoice attention = device::AttentionChoice::own;  ///< on a GPU
  bool fp8_forward = false;   ///< linear layers of the blocks compute their outputs in e4m3
  int64_t vocab_tile = 4096;  ///< columns of the logits computed at a time
  Bytes max_shard_size{5'000'000'000};
  uint64_t seed = 42;
  /// headrace.packing: the token that ends a document; unset: a sequence is one text.
  std::optional<int32_t> document_end;
  std::optional<AccumulationOrder> accumulation_order;  ///< unset: chosen by the plan
  std::optional<model::Recompute> recompute;  ///< of all blocks; unset: chosen by the plan
  bool optimizer_overlap = true;              ///< update during backward where it helps
  std::optional<int> numa_node;               ///< unset: all nodes
  std::string run_id;                         ///< empty: to be made
  KeepingSettings keeping;
  std::optional<int64_t> steps_per_print;  ///< unset: the command's choice
  bool wall_clock_breakdown = false;
  bool memory_breakdown = false;
  MonitorSettings tensorboard;
  MonitorSettings csv_monitor;
};

}  // namespace headrace::engine
