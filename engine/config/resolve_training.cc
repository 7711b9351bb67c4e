#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/config/resolver.h"

namespace headrace::engine {
namespace {

constexpr const char* kTrainPath = "train_batch_size";
constexpr const char* kMicroPath = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulationPath = "gradient_accumulation_steps";
constexpr const char* kParams = "scheduler.params.";
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

std::optional<int64_t> given(bool has, int64_t value) {
  return has ? std::optional<int64_t>(value) : std::nullopt;
}

// Adagrad's defaults in PyTorch and DeepSpeed; the schema has Adam's.
constexpr double kAdagradLr = 1e-2;
constexpr double kAdagradEps = 1e-10;

OptimizerKind kind_of(proto::Optimizer::Type type) {
  switch (type) {
    case proto::Optimizer::Adagrad:
      return OptimizerKind::adagrad;
    case proto::Optimizer::Lion:
      return OptimizerKind::lion;
    case proto::Optimizer::SGD:
      return OptimizerKind::sgd;
    default:  // the parser refuses the others
      return OptimizerKind::adam;
  }
}

int64_t product(int64_t a, int64_t b, int64_t c) {
  return (Elements(a) * b * c).count();  // checked
}

}  // namespace

/// Puts the command line's sizes in place of the file's. When the product rule then no longer
/// holds, a value that comes from the file is dropped, so that it is recomputed.
void Resolver::override_batch(std::optional<int64_t>& train, std::optional<int64_t>& micro,
                              std::optional<int64_t>& accumulation) {
  const auto replace = [this](const char* path, std::optional<int64_t>& value,
                              const std::optional<int64_t>& command_line) {
    if (command_line && accepts(path, number_of(*command_line))) {
      value = choose(path, value.has_value(), value.value_or(0), command_line);
    }
  };
  replace(kTrainPath, train, context_.train_batch);
  replace(kMicroPath, micro, context_.micro_batch);
  replace(kAccumulationPath, accumulation, context_.accumulation_steps);

  const bool overridden =
      context_.train_batch || context_.micro_batch || context_.accumulation_steps;
  if (!overridden || !train || !micro || !accumulation ||
      *train == product(*micro, *accumulation, context_.ranks)) {
    return;
  }
  const auto drop = [this](const char* path, std::optional<int64_t>& value) {
    note(LogLevel::info, "{}: {} of the file does not go with the command line; it is recomputed",
         path, *value);
    value.reset();
  };
  if (!context_.accumulation_steps) {
    drop(kAccumulationPath, accumulation);
  } else if (!context_.train_batch) {
    drop(kTrainPath, train);
  } else if (!context_.micro_batch) {
    drop(kMicroPath, micro);
  }
}

void Resolver::resolve_batch() {
  std::optional<int64_t> train = given(config_.has_train_batch_size(), config_.train_batch_size());
  std::optional<int64_t> micro =
      given(config_.has_train_micro_batch_size_per_gpu(), config_.train_micro_batch_size_per_gpu());
  std::optional<int64_t> accumulation =
      given(config_.has_gradient_accumulation_steps(), config_.gradient_accumulation_steps());
  override_batch(train, micro, accumulation);

  const bool may_guess = automatic(kTrainPath) || automatic(kMicroPath);
  if (!train && !micro && !may_guess) {
    problems_.add("one of {} and {} must be given", kTrainPath, kMicroPath);
    return;
  }
  const int64_t ranks = context_.ranks;
  if (!micro && !accumulation && automatic(kMicroPath)) {
    micro = 1;
  }
  if (train && micro && !accumulation) {
    accumulation = std::max<int64_t>(1, *train / product(*micro, ranks, 1));
  } else if (train && !micro) {
    accumulation = accumulation.value_or(1);
    micro = std::max<int64_t>(1, *train / product(*accumulation, ranks, 1));
  } else if (!train) {
    micro = micro.value_or(1);
    accumulation = accumulation.value_or(1);
    train = product(*micro, *accumulation, ranks);
  }
  if (*train != product(*micro, *accumulation, ranks)) {
    problems_.add("{} {} is not {} {} * {} {} * ranks {}; change one of them", kTrainPath, *train,
                  kMicroPath, *micro, kAccumulationPath, *accumulation, ranks);
    return;
  }
  if (!accepts(kMicroPath, number_of(*micro)) ||
      !accepts(kAccumulationPath, number_of(*accumulation))) {
    return;
  }
  constexpr const char* kRule = "train = micro * accumulation * ranks";
  note_auto(kTrainPath, show(*train), kRule);
  note_auto(kMicroPath, show(*micro), kRule);
  note_auto(kAccumulationPath, show(*accumulation), kRule);
  result_.settings.batch = {.train = *train, .micro = *micro, .accumulation_steps = *accumulation};
}

void Resolver::resolve_dtype() {
  const bool fp16 = config_.fp16().enabled();
  const bool bf16 = config_.bf16().enabled();
  if (fp16 && bf16) {
    problems_.add("fp16.enabled and bf16.enabled are both true; at most one can be");
  }
  const DType in_file = fp16 ? DType::f16 : bf16 ? DType::bf16 : DType::f32;
  const std::optional<DType>& wanted = context_.dtype;
  if (wanted && *wanted != DType::f32 && *wanted != DType::bf16 && *wanted != DType::f16) {
    problems_.add("training in {} is not possible; use f32, bf16 or f16", to_string(*wanted));
    return;
  }
  const DType dtype = wanted.value_or(in_file);
  if ((fp16 || bf16) && dtype != in_file) {
    note(LogLevel::info, "{}: {} from the command line replaces it",
         fp16 ? "fp16.enabled" : "bf16.enabled", to_string(dtype));
  }
  const std::string why = fmt::format("the dtype is {}", to_string(dtype));
  note_auto("fp16.enabled", dtype == DType::f16 ? "true" : "false", why);
  note_auto("bf16.enabled", dtype == DType::bf16 ? "true" : "false", why);
  result_.settings.dtype = dtype;
  resolve_gradient_dtype();
  result_.settings.skip_nonfinite_steps =
      dtype != DType::bf16 || config_.bf16().check_grad_overflow();
}

void Resolver::resolve_gradient_dtype() {
  note_auto("data_types.grad_accum_dtype", std::string(to_string(result_.settings.dtype)),
            "the dtype of the training");
  if (!config_.data_types().has_grad_accum_dtype()) {
    return;
  }
  const DType compute = result_.settings.dtype;
  const proto::DataTypes::Dtype wanted = config_.data_types().grad_accum_dtype();
  result_.settings.fp32_gradients = wanted == proto::DataTypes::fp32;
  const DType dtype = wanted == proto::DataTypes::fp32   ? DType::f32
                      : wanted == proto::DataTypes::fp16 ? DType::f16
                                                         : DType::bf16;
  if (dtype != DType::f32 && dtype != compute) {
    problems_.add("data_types.grad_accum_dtype: {} in a training in {}; it can be fp32 or that",
                  to_string(dtype), to_string(compute));
  }
}

void Resolver::resolve_loss_scale() {
  if (result_.settings.dtype != DType::f16) {
    return;
  }
  const proto::Fp16& fp16 = config_.fp16();
  LossScaleSettings& scale = result_.settings.loss_scale;
  scale.dynamic = fp16.loss_scale() == 0;
  scale.initial = scale.dynamic ? std::exp2(static_cast<double>(fp16.initial_scale_power()))
                                : fp16.loss_scale();
  scale.min = fp16.min_loss_scale();
  scale.window_steps = fp16.loss_scale_window();
  scale.hysteresis = fp16.hysteresis();
  scale.consecutive_hysteresis = fp16.consecutive_hysteresis();
  if (scale.initial > static_cast<double>(std::numeric_limits<float>::max())) {
    problems_.add("fp16.loss_scale: {} is beyond the range of fp32", scale.initial);
  }
  if (scale.dynamic && scale.initial < scale.min) {
    problems_.add("fp16.min_loss_scale: {} is above the initial scale {} (2 to the power of {})",
                  scale.min, scale.initial, "fp16.initial_scale_power");
  }
}

void Resolver::resolve_optimizer() {
  const proto::OptimizerParams& params = config_.optimizer().params();
  UpdateOptions& optimizer = result_.settings.optimizer;
  const proto::Optimizer::Type type = config_.optimizer().type();
  const bool is_adagrad = type == proto::Optimizer::Adagrad;
  optimizer.kind = kind_of(type);
  const double lr = is_adagrad && !params.has_lr() ? kAdagradLr : params.lr();
  optimizer.lr = choose("optimizer.params.lr", params.has_lr(), lr, context_.lr);
  optimizer.weight_decay = choose("optimizer.params.weight_decay", params.has_weight_decay(),
                                  params.weight_decay(), context_.weight_decay);
  if (params.betas_size() == 2) {
    optimizer.beta1 = params.betas(0);
    optimizer.beta2 = params.betas(1);
  }
  optimizer.eps = is_adagrad && !params.has_eps() ? kAdagradEps : params.eps();
  optimizer.bias_correction = params.bias_correction();
  optimizer.lr_decay = params.lr_decay();
  optimizer.momentum = params.momentum();
  optimizer.dampening = params.dampening();
  optimizer.nesterov = params.nesterov();
  if (optimizer.nesterov && (optimizer.momentum == 0 || optimizer.dampening != 0)) {
    problems_.add("optimizer.params.nesterov: needs momentum above 0 and dampening 0");
  }
  resolve_state();
  const bool is_adamw = type == proto::Optimizer::AdamW;
  optimizer.decoupled_weight_decay = is_adamw || params.adam_w_mode();
  if (is_adamw && !params.adam_w_mode()) {
    note(LogLevel::warning,
         "optimizer.params.adam_w_mode: false changes nothing, AdamW is always decoupled; "
         "type Adam with false is the coupled form");
  }
  result_.settings.gradient_clipping =
      choose("gradient_clipping", config_.has_gradient_clipping(), config_.gradient_clipping(),
             context_.gradient_clipping);
}

void Resolver::resolve_state() {
  const UpdateOptions& optimizer = result_.settings.optimizer;
  StateRequest& state = result_.settings.state;
  const DType dtype = result_.settings.dtype;
  state.moments = moment_count(optimizer.kind, optimizer.momentum);
  state.split_master = config_.headrace().split_master();
  if (config_.headrace().lossy_8bit_moments()) {
    resolve_8bit_moments();
    return;
  }
  if (config_.optimizer().params().fp32_optimizer_states() || dtype == DType::f32) {
    return;
  }
  if (dtype == DType::f16) {
    problems_.add(
        "optimizer.params.fp32_optimizer_states: false needs bf16 training; moments in fp16 leave "
        "its range");
    return;
  }
  state.moment_dtype = DType::bf16;
}

void Resolver::resolve_8bit_moments() {
  const std::string key = "headrace.lossy_8bit_moments";
  if (!has_8bit_moments(result_.settings.optimizer.kind)) {
    problems_.add("{}: not for Adagrad, whose sum only grows and would never forget a rounding",
                  key);
  }
  if (!config_.optimizer().params().fp32_optimizer_states()) {
    problems_.add(
        "{} and optimizer.params.fp32_optimizer_states: false ask for moments of 8 and "
        "of 16 bits; leave one out",
        key);
  }
  if (result_.settings.state.moments == 0) {
    note(LogLevel::warning, "{}: SGD without momentum keeps no moment", key);
    return;
  }
  result_.settings.state.moment_dtype = DType::u8;
}

void Resolver::resolve_scheduler() {
  if (!config_.has_scheduler()) {
    return;
  }
  const proto::SchedulerParams& params = config_.scheduler().params();
  const double lr = result_.settings.optimizer.lr;
  SchedulerSettings& scheduler = result_.settings.scheduler;
  switch (config_.scheduler().type()) {
    case proto::Scheduler::WarmupDecayLR:
      scheduler.kind = SchedulerKind::warmup_decay;
      break;
    case proto::Scheduler::WarmupCosineLR:
      scheduler.kind = SchedulerKind::warmup_cosine;
      break;
    default:  // the parser refuses the others
      scheduler.kind = SchedulerKind::warmup;
      break;
  }
  scheduler.warmup_shape = params.warmup_type() == proto::SchedulerParams::linear
                               ? WarmupShape::linear
                               : WarmupShape::logarithmic;
  const std::string steps_path = kParams + std::string("warmup_num_steps");
  scheduler.warmup_steps =
      choose(steps_path, params.has_warmup_num_steps(),
             automatic(steps_path) ? int64_t{0} : params.warmup_num_steps(), context_.warmup_steps);
  scheduler.warmup_min_ratio = params.warmup_min_ratio();
  scheduler.cos_min_ratio = params.cos_min_ratio();
  scheduler.warmup_min_lr = params.warmup_min_lr();
  const std::string max_path = kParams + std::string("warmup_max_lr");
  scheduler.warmup_max_lr =
      params.has_warmup_max_lr() ? choose(max_path, true, params.warmup_max_lr(), context_.lr) : lr;
  note_auto(max_path, show(lr), "the learning rate");
  if (scheduler.kind != SchedulerKind::warmup) {
    resolve_schedule_length();
  }
}

void Resolver::resolve_schedule_length() {
  const proto::SchedulerParams& params = config_.scheduler().params();
  SchedulerSettings& scheduler = result_.settings.scheduler;
  const std::string path = kParams + std::string("total_num_steps");
  if (params.has_total_num_steps()) {
    scheduler.total_steps = params.total_num_steps();
    if (context_.total_steps && *context_.total_steps != scheduler.total_steps) {
      note(LogLevel::info, "{}: the schedule has {} steps, the run {}", path, scheduler.total_steps,
           *context_.total_steps);
    }
  } else if (context_.total_steps) {
    scheduler.total_steps = *context_.total_steps;
    note_auto(path, show(scheduler.total_steps), "the steps of the run");
  } else {
    problems_.add("{}: the number of steps of the run is not known; write it here", path);
    return;
  }
  if (scheduler.total_steps <= scheduler.warmup_steps) {
    note(LogLevel::warning, "{}: {} steps end within the warmup of {} steps", path,
         scheduler.total_steps, scheduler.warmup_steps);
  }
}

void Resolver::resolve_packing() {
  const std::string path = "headrace.document_end";
  const proto::Headrace& own = config_.headrace();
  std::optional<int64_t> token = given(own.has_document_end(), own.document_end());
  if (!own.packing()) {
    if (token) {
      note(LogLevel::info, "{}: has no effect without headrace.packing", path);
    }
    note_auto(path, "none", "headrace.packing is off");
    return;
  }
  const std::vector<int64_t>& of_model = context_.end_tokens;
  if (!token && of_model.size() == 1) {
    token = of_model.front();
    note_auto(path, show(*token), "eos_token_id of the model");
  }
  if (!token) {
    problems_.add(
        "{}: headrace.packing needs the token that ends a document in the data; the "
        "model's config.json has {}",
        path,
        of_model.empty()
            ? "no eos_token_id"
            : fmt::format("more than one eos_token_id ({})", fmt::join(of_model, ", ")));
    return;
  }
  if (*token < 0 || *token >= context_.vocab_size.value_or(kMostTokens)) {
    problems_.add("{}: {} is not in the model's vocabulary", path, *token);
    return;
  }
  result_.settings.document_end = static_cast<int32_t>(*token);
}

}  // namespace headrace::engine
