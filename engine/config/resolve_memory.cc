#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/config/resolver.h"

namespace headrace::engine {
namespace {

constexpr int64_t kBlockMultiple = 4096;
constexpr size_t kLongestRunId = 64;

OffloadDevice device_of(proto::OffloadParam::Device device) {
  switch (device) {
    case proto::OffloadParam::cpu:
      return OffloadDevice::cpu;
    case proto::OffloadParam::nvme:
      return OffloadDevice::nvme;
    default:
      return OffloadDevice::none;
  }
}

aio::SubmissionMode submission_of(proto::Headrace::IoSubmission mode) {
  switch (mode) {
    case proto::Headrace::sq_poll:
      return aio::SubmissionMode::sq_poll;
    case proto::Headrace::io_poll:
      return aio::SubmissionMode::io_poll;
    default:
      return aio::SubmissionMode::interrupt;
  }
}

PolicyKind policy_of(proto::Headrace::Policy policy) {
  switch (policy) {
    case proto::Headrace::lru:
      return PolicyKind::lru;
    case proto::Headrace::liveness:
      return PolicyKind::liveness;
    default:
      return PolicyKind::optimal;
  }
}

device::AttentionChoice attention_of(proto::Headrace::Attention choice) {
  switch (choice) {
    case proto::Headrace::cudnn:
      return device::AttentionChoice::cudnn;
    case proto::Headrace::fastest:
      return device::AttentionChoice::fastest;
    default:
      return device::AttentionChoice::own;
  }
}

model::Recompute recompute_of(proto::Headrace::Recompute level) {
  switch (level) {
    case proto::Headrace::none:
      return model::Recompute::none;
    case proto::Headrace::mlp:
      return model::Recompute::mlp;
    default:
      return model::Recompute::block;
  }
}

bool is_run_id(const std::string& text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kLongestRunId && text[0] != '.' &&
         std::all_of(text.begin(), text.end(), allowed);
}

std::optional<Bytes> bytes_if(bool has, int64_t count) {
  return has ? std::optional<Bytes>(Bytes(count)) : std::nullopt;
}

}  // namespace

void Resolver::resolve_offload() {
  const proto::ZeroOptimization& zero = config_.zero_optimization();
  OffloadSettings& offload = result_.settings.offload;
  offload.zero_stage = zero.stage();
  offload.weights = device_of(zero.offload_param().device());
  offload.optimizer = device_of(zero.offload_optimizer().device());
  if (zero.offload_optimizer().has_ratio()) {
    offload.optimizer_ratio = zero.offload_optimizer().ratio();
  }
  note_auto("zero_optimization.offload_optimizer.ratio", "what is faster and fits",
            "chosen by the plan");
  offload.pin_memory = zero.offload_param().pin_memory() && zero.offload_optimizer().pin_memory();
  offload.sub_group = Elements(zero.sub_group_size());
  if (config_.headrace().activation_nvme()) {
    offload.activations = OffloadDevice::nvme;
  } else if (config_.activation_checkpointing().cpu_checkpointing()) {
    offload.activations = OffloadDevice::cpu;
  }
  check_stages();
  resolve_nvme_paths();
}

void Resolver::check_stages() {
  const OffloadSettings& offload = result_.settings.offload;
  const int stage = offload.zero_stage;
  if (offload.weights != OffloadDevice::none && stage != 3) {
    problems_.add(
        "zero_optimization.offload_param.device: offloading weights needs stage 3, not {}", stage);
  }
  if (offload.optimizer == OffloadDevice::nvme && stage != 3) {
    problems_.add("zero_optimization.offload_optimizer.device: nvme needs stage 3, not {}", stage);
  }
  if (offload.optimizer == OffloadDevice::cpu && stage == 0) {
    problems_.add("zero_optimization.offload_optimizer.device: cpu needs stage 1, 2 or 3, not 0");
  }
  if (offload.optimizer_ratio.value_or(1) < 1 && stage != 3) {
    problems_.add("zero_optimization.offload_optimizer.ratio: below 1 needs stage 3, not {}",
                  stage);
  }
}

void Resolver::resolve_nvme_paths() {
  OffloadSettings& offload = result_.settings.offload;
  std::vector<std::string>& paths = offload.nvme_paths;
  const auto& own = config_.headrace().nvme_path();
  const proto::ZeroOptimization& zero = config_.zero_optimization();
  if (!context_.nvme_paths.empty()) {
    paths = context_.nvme_paths;
    if (!own.empty()) {
      note(LogLevel::info, "headrace.nvme_path: {} from the command line replaces it",
           fmt::join(paths, ", "));
    }
  } else if (!own.empty()) {
    paths.assign(own.begin(), own.end());
  } else {
    if (zero.offload_param().has_nvme_path()) {
      paths.push_back(zero.offload_param().nvme_path());
    }
    const std::string& second = zero.offload_optimizer().nvme_path();
    if (zero.offload_optimizer().has_nvme_path() && (paths.empty() || paths[0] != second)) {
      paths.push_back(second);
    }
    if (paths.size() == 2 && offload.uses_nvme()) {
      note(LogLevel::info, "nvme_path: everything on NVMe is striped over {} and {}", paths[0],
           paths[1]);
    }
  }
  if (!offload.uses_nvme()) {
    paths.clear();
    return;
  }
  if (paths.empty()) {
    problems_.add(
        "headrace.nvme_path: nothing says where files go, although {} is to be on nvme; "
        "write a folder on the drive here (or in nvme_path of the offload block)",
        offload.weights == OffloadDevice::nvme     ? "zero_optimization.offload_param"
        : offload.optimizer == OffloadDevice::nvme ? "zero_optimization.offload_optimizer"
                                                   : "headrace.activation_nvme");
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    if (paths[i].empty()) {
      problems_.add("nvme_path: the path is empty");
    }
    if (std::find(paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(i), paths[i]) !=
        paths.begin() + static_cast<std::ptrdiff_t>(i)) {
      problems_.add("nvme_path: {} is given twice", paths[i]);
    }
  }
}

/// The sizes that follow from the model are those that the Hugging Face Trainer fills in.
void Resolver::resolve_liveness() {
  const proto::ZeroOptimization& zero = config_.zero_optimization();
  scheduler::LivenessLimits& liveness = result_.settings.liveness;
  liveness.prefetch_bucket = Elements(zero.stage3_prefetch_bucket_size());
  liveness.persistence_threshold = Elements(zero.stage3_param_persistence_threshold());
  liveness.model_persistence_threshold = Elements(zero.stage3_model_persistence_threshold());
  liveness.max_live_parameters = Elements(zero.stage3_max_live_parameters());
  liveness.max_reuse_distance = Elements(zero.stage3_max_reuse_distance());
  if (!context_.hidden_size) {
    return;
  }
  const Elements hidden(*context_.hidden_size);
  const Elements square = hidden * *context_.hidden_size;
  note_auto("zero_optimization.reduce_bucket_size", show(square), "hidden_size * hidden_size");
  const std::string prefetch = "zero_optimization.stage3_prefetch_bucket_size";
  if (automatic(prefetch)) {
    liveness.prefetch_bucket =
        Elements(static_cast<int64_t>(std::trunc(0.9 * static_cast<double>(square.count()))));
    note_auto(prefetch, show(liveness.prefetch_bucket), "0.9 * hidden_size * hidden_size");
  }
  const std::string persistence = "zero_optimization.stage3_param_persistence_threshold";
  if (automatic(persistence)) {
    liveness.persistence_threshold = hidden * 10;
    note_auto(persistence, show(liveness.persistence_threshold), "10 * hidden_size");
  }
}

/// The limits are in many files, copied; a run that does not read them says so once.
void Resolver::note_unread_limits() {
  const proto::ZeroOptimization& zero = config_.zero_optimization();
  const bool given =
      zero.has_stage3_max_live_parameters() || zero.has_stage3_max_reuse_distance() ||
      zero.has_stage3_prefetch_bucket_size() || zero.has_stage3_param_persistence_threshold() ||
      zero.has_stage3_model_persistence_threshold();
  if (given && result_.settings.policy != PolicyKind::liveness) {
    note(LogLevel::info,
         "zero_optimization: stage3_max_live_parameters, stage3_max_reuse_distance, "
         "stage3_prefetch_bucket_size and the persistence thresholds are read by headrace.policy "
         "liveness only; this run plans in bytes");
  }
}

void Resolver::resolve_aio() {
  const proto::Aio& aio = config_.aio();
  AioSettings& settings = result_.settings.aio;
  settings.block_size = Bytes(aio.block_size());
  settings.queue_depth = static_cast<int>(aio.queue_depth());
  settings.threads = static_cast<int>(aio.intra_op_parallelism());
  settings.adaptive_depth = !aio.has_queue_depth();
  settings.verify_reads = config_.headrace().verify_reads();
  settings.direct =
      config_.headrace().has_gpudirect() ? config_.headrace().gpudirect() : aio.use_gds();
  settings.submission = submission_of(config_.headrace().io_submission());
  settings.prewrite = config_.headrace().nvme_prewrite();
  if (aio.block_size() % kBlockMultiple != 0) {
    problems_.add("aio.block_size: {} is not a multiple of {} bytes", aio.block_size(),
                  kBlockMultiple);
  }
  if (config_.headrace().has_io_backend()) {
    settings.backend = config_.headrace().io_backend() == proto::Headrace::io_uring
                           ? IoBackendChoice::io_uring
                           : IoBackendChoice::thread_pool;
  }
  settings.backend = context_.io_backend.value_or(settings.backend);
  const proto::Headrace& own = config_.headrace();
  settings.read_limit = bytes_if(own.has_nvme_read_limit(), own.nvme_read_limit());
  settings.write_limit = bytes_if(own.has_nvme_write_limit(), own.nvme_write_limit());
  settings.limit = bytes_if(own.has_nvme_limit(), own.nvme_limit());
  note_auto("headrace.io_backend", "the best one that the kernel allows", "probed at start");
}

void Resolver::resolve_headrace() {
  const proto::Headrace& own = config_.headrace();
  Settings& settings = result_.settings;
  const auto budget = [this](const std::string& path, std::optional<Bytes> in_file,
                             const std::optional<Bytes>& command_line,
                             const std::string& automatic_value) {
    if (command_line) {
      return std::optional<Bytes>(
          choose(path, in_file.has_value(), in_file.value_or(Bytes(0)), command_line));
    }
    note_auto(path, automatic_value, "from the machine");
    return in_file;
  };
  settings.budgets.device =
      budget("headrace.device_memory", bytes_if(own.has_device_memory(), own.device_memory()),
             context_.device_memory, context_.has_gpu ? "what the GPU has free" : "no device tier");
  settings.budgets.host =
      budget("headrace.host_memory", bytes_if(own.has_host_memory(), own.host_memory()),
             context_.host_memory, "what is free");
  settings.budgets.nvme =
      budget("headrace.nvme_budget", bytes_if(own.has_nvme_budget(), own.nvme_budget()),
             context_.nvme_budget, "the free space");
  settings.policy = context_.policy.value_or(policy_of(own.policy()));
  note_unread_limits();
  settings.link_limit = bytes_if(own.has_link_limit(), own.link_limit());
  settings.tf32 = own.tf32();
  settings.attention = attention_of(own.attention());
  settings.vocab_tile = own.vocab_tile();
  settings.max_shard_size = Bytes(own.max_shard_size());
  settings.seed =
      choose("headrace.seed", own.has_seed(), static_cast<uint64_t>(own.seed()), context_.seed);
  settings.max_skipped_steps = own.max_skipped_steps();
  if (own.has_accumulation_order()) {
    settings.accumulation_order = own.accumulation_order() == proto::Headrace::layer_major
                                      ? AccumulationOrder::layer_major
                                      : AccumulationOrder::micro_batch_major;
  }
  if (own.has_recompute()) {
    settings.recompute = recompute_of(own.recompute());
  }
  note_auto("headrace.recompute", "what is faster and fits", "chosen by the plan");
  settings.optimizer_overlap = own.optimizer_overlap() == proto::Headrace::exact;
  note_auto("headrace.accumulation_order", "the faster one", "chosen by the plan");
  if (own.has_numa_node()) {
    settings.numa_node = static_cast<int>(own.numa_node());
  }
  note_auto("headrace.numa_node", "all nodes", "memory and threads are spread");
  if (own.has_run_id()) {
    settings.run_id = own.run_id();
    if (!is_run_id(settings.run_id)) {
      problems_.add(
          "headrace.run_id: it must have 1 to {} letters, digits, '-', '_' or '.', and not start "
          "with '.'",
          kLongestRunId);
    }
  }
  note_auto("headrace.run_id", "a new name", "from host, process and time");
  resolve_keeping();
  resolve_reports();
  resolve_compute();
}

void Resolver::resolve_keeping() {
  const proto::Headrace& own = config_.headrace();
  KeepingSettings& keeping = result_.settings.keeping;
  keeping.durability =
      own.durability() == proto::Headrace::in_place ? Durability::in_place : Durability::step;
  keeping.save_interval = own.save_interval();
  keeping.keep_last = own.keep_last();
  keeping.run_dir = own.run_dir();
  note_auto("headrace.run_dir", "the output folder", "the default");
  keeping.keep_run = own.keep_run();
}

void Resolver::resolve_compute() {
  Settings& settings = result_.settings;
  const proto::Headrace& own = config_.headrace();
  const bool has_device = context_.has_gpu || settings.budgets.device.has_value();
  const bool wants_device =
      own.has_compute() ? own.compute() == proto::Headrace::device : has_device;
  settings.compute = wants_device ? ComputePlace::device : ComputePlace::host;
  note_auto("headrace.compute", wants_device ? "device" : "host",
            context_.has_gpu ? "there is a GPU"
            : has_device     ? "device_memory is given"
                             : "there is no GPU and no device_memory");
  if (wants_device && !has_device) {
    problems_.add(
        "headrace.compute: device without a GPU needs headrace.device_memory, the size of the "
        "emulated device{}",
        context_.no_gpu_reason.empty() ? "" : "; no GPU is used: " + context_.no_gpu_reason);
  }
  if (!wants_device && settings.budgets.device) {
    problems_.add(
        "headrace.device_memory: with headrace.compute = host there is no device tier; remove one "
        "of the two");
  }
  if (settings.tf32 && (settings.dtype != DType::f32 || !context_.has_gpu)) {
    note(LogLevel::info, "headrace.tf32: has no effect, {}",
         settings.dtype != DType::f32 ? "the training is not in fp32" : "there is no GPU");
  }
  if (own.has_cuda_graphs()) {
    settings.cuda_graphs = own.cuda_graphs() ? device::GraphUse::on : device::GraphUse::off;
    if (own.cuda_graphs() && !context_.has_gpu) {
      note(LogLevel::info, "headrace.cuda_graphs: has no effect, there is no GPU");
    }
  }
  note_auto("headrace.cuda_graphs", "where they help", "measured in the run");
  if (settings.attention != device::AttentionChoice::own &&
      (settings.dtype == DType::f32 || !context_.has_gpu)) {
    note(LogLevel::info, "headrace.attention: has no effect, {}",
         settings.dtype == DType::f32 ? "the training is in fp32" : "there is no GPU");
  }
  resolve_fp8(wants_device);
  note_idle_ratio(wants_device);
  note_idle_limits();
}

void Resolver::resolve_fp8(bool wants_device) {
  Settings& settings = result_.settings;
  settings.fp8_forward = config_.headrace().lossy_fp8_forward();
  if (!settings.fp8_forward) {
    return;
  }
  const std::string key = "headrace.lossy_fp8_forward";
  if (settings.dtype == DType::f32) {
    problems_.add("{}: needs bf16 or fp16 training; in fp32 only headrace.tf32 rounds products",
                  key);
  }
  if (!wants_device || !context_.has_gpu) {
    note(LogLevel::warning,
         "{}: the CPU computes what a GPU would, but slower than without this key; it is meant for "
         "checks",
         key);
  }
}

void Resolver::note_idle_ratio(bool wants_device) {
  const OffloadSettings& offload = result_.settings.offload;
  if (offload.optimizer_ratio.value_or(1) == 1) {
    return;
  }
  const char* why = nullptr;
  if (!wants_device) {
    why = "there is no device tier";
  } else if (offload.optimizer == OffloadDevice::none) {
    why = "the optimizer is not offloaded";
  } else if (result_.settings.state.moment_dtype == DType::u8) {
    why = "8-bit moments are updated by the CPU";
  }
  if (why != nullptr) {
    note(LogLevel::warning, "zero_optimization.offload_optimizer.ratio has no effect: {}", why);
  }
}

void Resolver::note_idle_limits() {
  const Settings& settings = result_.settings;
  if (settings.link_limit && settings.compute == ComputePlace::host) {
    note(LogLevel::info, "headrace.link_limit: has no effect, there is no device tier");
  }
  const AioSettings& aio = settings.aio;
  if ((aio.read_limit || aio.write_limit || aio.limit) && !settings.offload.uses_nvme()) {
    note(LogLevel::info,
         "headrace.nvme_read_limit, nvme_write_limit and nvme_limit: have no effect, nothing goes "
         "to nvme");
  }
  if (aio.direct && (!settings.offload.uses_nvme() || settings.compute == ComputePlace::host)) {
    note(LogLevel::info, "headrace.gpudirect (aio.use_gds): has no effect, {}",
         settings.offload.uses_nvme() ? "there is no device tier" : "nothing goes to nvme");
  }
}

}  // namespace headrace::engine
