// The files that DeepSpeed's loader of universal checkpoints asks for; read by its stages 1 and 2
// (runtime/base_optimizer.py) and 3 (runtime/zero/stage3.py), which look in different places of
// the same dictionaries.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/export.h"
#include "engine/run_access.h"
#include "engine/state_reader.h"
#include "model/checkpoint_file.h"
#include "model/partial_folder.h"
#include "model/pickle_text.h"
#include "model/torch_file.h"

namespace headrace::engine {

namespace {

namespace pickle = model::pickle;
using Items = std::vector<std::pair<std::string, std::string>>;

/// The version whose layout the files have: its loader refuses those of old versions.
constexpr const char* kDeepSpeedVersion = "0.16.0";

/// One setting of the run; empty where the run does not say it, as an imported one.
std::optional<std::string> setting(const proto::RunState& state, const std::string& name) {
  const auto found = state.settings().find(name);
  return found == state.settings().end() ? std::nullopt : std::optional(found->second);
}

std::optional<double> number_setting(const proto::RunState& state, const std::string& name) {
  const std::optional<std::string> text = setting(state, name);
  double value = 0;
  if (!text ||
      std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) {
    return std::nullopt;
  }
  return value;
}

/// What the loader sets in the optimizer's parameter group; what the run does not know is left out,
/// and stays as the loading configuration says.
std::string parameter_group(const proto::RunState& state) {
  Items items;
  if (state.has_last_step()) {
    items.emplace_back(pickle::text("lr"), pickle::real(state.last_step().learning_rate()));
  }
  const auto beta1 = number_setting(state, "optimizer.beta1");
  const auto beta2 = number_setting(state, "optimizer.beta2");
  if (beta1 && beta2) {
    items.emplace_back(pickle::text("betas"),
                       pickle::tuple({pickle::real(*beta1), pickle::real(*beta2)}));
  }
  for (const char* name : {"eps", "weight_decay"}) {
    if (const auto value = number_setting(state, fmt::format("optimizer.{}", name))) {
      items.emplace_back(pickle::text(name), pickle::real(*value));
    }
  }
  items.emplace_back(pickle::text("params"), pickle::list({pickle::integer(0)}));
  return pickle::dictionary(items);
}

/// DeepSpeed's dynamic loss scaler in the state that the run's is in; empty where the run has none.
std::string loss_scaler(const proto::RunState& state) {
  const auto window = number_setting(state, "fp16.loss_scale_window");
  const auto minimum = number_setting(state, "fp16.min_loss_scale");
  const auto hysteresis = number_setting(state, "fp16.hysteresis");
  if (state.layout().dtype() != "f16" || !window || !minimum || !hysteresis) {
    return "";
  }
  const proto::LossScaler& scaler = state.loss_scaler();
  const auto attribute = [](const char* name, std::string value) {
    return std::pair(pickle::text(name), std::move(value));
  };
  const std::string attributes = pickle::dictionary(
      {attribute("cur_scale", pickle::real(scaler.scale())),
       attribute("cur_iter", pickle::integer(scaler.iteration())),
       attribute("last_overflow_iter", pickle::integer(scaler.last_overflow_iteration())),
       attribute("scale_factor", pickle::real(2.0)),
       attribute("scale_window", pickle::integer(static_cast<int64_t>(*window))),
       attribute("min_scale", pickle::real(*minimum)),
       attribute("delayed_shift", pickle::integer(static_cast<int64_t>(*hysteresis))),
       attribute("cur_hysteresis", pickle::integer(scaler.hysteresis_left())),
       attribute("consecutive_hysteresis",
                 pickle::boolean(setting(state, "fp16.consecutive_hysteresis") == "true")),
       attribute("raise_error_at_min_scale", pickle::boolean(true)),
       attribute("dynamic", pickle::boolean(true)),
       attribute("dtype", pickle::global("torch", "float16"))});
  return pickle::object("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", attributes);
}

/// zero/optimizer_state.pt.
std::string optimizer_state(const proto::RunState& state) {
  const std::string groups = pickle::list({parameter_group(state)});
  const std::string step =
      pickle::dictionary({{pickle::text("step"), pickle::integer(state.updates())}});
  const std::string states = pickle::dictionary({{pickle::integer(0), step}});
  Items items{{pickle::text("ds_version"), pickle::text(kDeepSpeedVersion)},
              {pickle::text("param_groups"), groups},
              {pickle::text("optimizer_state_dict"),
               pickle::dictionary(
                   {{pickle::text("state"), states}, {pickle::text("param_groups"), groups}})}};
  if (const std::string scaler = loss_scaler(state); !scaler.empty()) {
    items.emplace_back(pickle::text("loss_scaler"), scaler);
    items.emplace_back(pickle::text("dynamic_loss_scale"), pickle::boolean(true));
  }
  return pickle::dictionary(items);
}

/// *_model_states.pt: the weights themselves are taken from zero/.
std::string model_states(const proto::RunState& state) {
  const std::string schedule = pickle::dictionary(
      {{pickle::text("last_batch_iteration"), pickle::integer(state.updates() - 1)}});
  return pickle::dictionary(
      {{pickle::text("module"), pickle::dictionary({})},
       {pickle::text("lr_scheduler"), schedule},
       {pickle::text("global_steps"), pickle::integer(state.step())},
       {pickle::text("global_samples"), pickle::integer(state.next_sequence())},
       {pickle::text("skipped_steps"), pickle::integer(state.step() - state.updates())},
       {pickle::text("dp_world_size"), pickle::integer(1)},
       {pickle::text("mp_world_size"), pickle::integer(1)},
       {pickle::text("ds_version"), pickle::text(kDeepSpeedVersion)}});
}

class UniversalWriter {
 public:
  UniversalWriter(tiers::ExtentStore& store, const ExportOptions& options)
      : state_(run_state_of(store, options.generation)),
        reader_(store, options.generation, state_.layout()),
        output_(options.output_folder),
        tag_(fmt::format("global_step{}", state_.step())),
        folder_(output_.file(tag_)) {
    if (state_.layout().optimizer() != "adam") {
      throw InputError(
          fmt::format("the run has the state of {}; DeepSpeed's universal checkpoints have that of "
                      "Adam: exp_avg and exp_avg_sq",
                      state_.layout().optimizer()));
    }
    if (!reader_.has(StateArray::moment2)) {
      throw InputError(
          "the run has no moments, which DeepSpeed's universal checkpoints have: it was made of "
          "weights and has not trained yet; train a step, or export --format huggingface");
    }
  }

  void write(const ExportProgress& progress) {
    int64_t done = 0;
    int64_t total = 0;
    for (const proto::StoredModule& module : state_.layout().modules()) {
      for (const proto::StoredParameter& parameter : module.parameters()) {
        total += parameter.count();
      }
    }
    for (const proto::StoredModule& module : state_.layout().modules()) {
      for (const proto::StoredParameter& parameter : module.parameters()) {
        if (parameter.first() == 0) {  // of one in several modules, once
          write_parameter(parameter);
        }
        done += parameter.count();
        progress(done, total);
      }
    }
    write_globals();
    folder_.rename_to_target();
    output_.sync();
    model::replace_file(output_.file("latest_universal"), tag_);
  }

 private:
  /// The shape of all of the parameter, which is not to be trusted to have as many elements.
  std::vector<int64_t> shape_of(const proto::StoredParameter& parameter) const {
    const int64_t count = reader_.count(parameter.name()).count();
    int64_t elements = 1;
    for (const int64_t extent : parameter.shape()) {
      if (extent <= 0 || extent > count / elements) {
        refuse_layout(
            fmt::format("shape of parameter {}, which has {} elements", parameter.name(), count));
      }
      elements *= extent;
    }
    if (elements != count) {
      refuse_layout(fmt::format("shape of {} elements of parameter {}, which has {}", elements,
                                parameter.name(), count));
    }
    return {parameter.shape().begin(), parameter.shape().end()};
  }

  void write_parameter(const proto::StoredParameter& parameter) {
    constexpr std::array<std::pair<const char*, StateArray>, 3> kArrays{
        {{"fp32", StateArray::master},
         {"exp_avg", StateArray::moment1},
         {"exp_avg_sq", StateArray::moment2}}};
    const std::vector<int64_t> shape = shape_of(parameter);
    model::OutputFolder folder(fmt::format("{}/zero/{}", folder_.path(), parameter.name()));
    for (const auto& [name, array] : kArrays) {
      model::write_torch_parameter(folder.file(fmt::format("{}.pt", name)), shape,
                                   [&, which = array](Elements first, std::span<float> out) {
                                     reader_.read(parameter.name(), which, first, out);
                                   });
    }
    model::write_torch_number(folder.file("step.pt"), state_.updates());
    folder.sync();
  }

  void write_globals() {
    const model::OutputFolder zero(folder_.path() + "/zero");
    model::write_torch_value(zero.file("optimizer_state.pt"), optimizer_state(state_));
    zero.sync();
    const model::OutputFolder folder(folder_.path());
    const std::string states = model_states(state_);
    // Stages 0 to 2 read the first name, stage 3 the second.
    for (const char* name :
         {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"}) {
      model::write_torch_value(folder.file(name), states);
    }
    folder.sync();
  }

  proto::RunState state_;
  StateReader reader_;
  model::OutputFolder output_;
  std::string tag_;
  model::PartialFolder folder_;
};

}  // namespace

void export_universal(tiers::ExtentStore& store, const ExportOptions& options,
                      const ExportProgress& progress) {
  UniversalWriter(store, options).write(progress);
}

}  // namespace headrace::engine
