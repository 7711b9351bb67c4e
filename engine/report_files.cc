#include "engine/report_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/recompute_choice.h"
#include "model/checkpoint_file.h"
#include "model/model_config.h"

namespace headrace::engine {

namespace {

using Json = nlohmann::ordered_json;

/// Steps after the first one of the process that are kept for the report, one instead of the other:
/// the first, so that there is one; one by which the engine knows what its steps cost and compiles
/// no more; and one by which that is so for speculative updates too, which begin later.
constexpr std::array<int64_t, 3> kKept = {0, 3, 7};
constexpr int64_t kSteady = kKept[1];
constexpr int64_t kTracedByDefault = 3;

TimelineTitle make_title(const TrainJob& job, const ReportFiles::Facts& facts) {
  const MemoryPlan& plan = facts.engine->plan();
  const MemoryRequest& request = facts.options->memory;
  TimelineTitle title;
  title.name = std::filesystem::path(job.output_folder).lexically_normal().string();
  title.host.budget = request.host_memory;
  (plan.has_device() ? title.device.emplace() : title.host).fixed = plan.fixed_bytes();
  if (title.device) {
    title.device->budget = *request.device_memory;
  }
  return title;
}

Json model_json(const TrainJob& job, const ReportFiles::Facts& facts) {
  return {{"folder", job.model_folder},
          {"layers", facts.model->layers},
          {"hidden_size", facts.model->hidden_size},
          {"vocab_size", facts.model->vocab_size},
          {"parameters", model::parameter_count(*facts.model).count()},
          {"dtype", to_string(facts.options->dtype)}};
}

Json plan_json(const MemoryPlan& plan) {
  const StateBytes state = state_bytes(plan.layout);
  const Placement& placement = plan.layout.placement;
  const model::PerLevel<int64_t> levels = count_levels(plan.layout.recompute);
  const auto row = [](Bytes bytes, Tier tier) {
    return Json{{"bytes", bytes.count()}, {"tier", to_string(tier)}};
  };
  return {
      {"weights", row(state.weights, placement.weights)},
      {"optimizer", row(state.optimizer, placement.optimizer)},
      {"optimizer_on_device", row(state.optimizer_on_device, Tier::device)},
      {"gradients", row(state.gradients, placement.gradients)},
      {"activations", row(state.activations, placement.activations)},
      {"saved", row(state.saved, placement.activations)},
      {"recompute",
       {{"block", levels[model::Recompute::block]},
        {"mlp", levels[model::Recompute::mlp]},
        {"none", levels[model::Recompute::none]}}},
      {"vocabulary_tiles", plan.layout.vocab_tiles},
      {"block_tiles", {{"attention", plan.layout.attention_tiles}, {"mlp", plan.layout.mlp_tiles}}},
      {"workspace", row(plan.fixed_bytes(), placement.compute)}};
}

Json memory_json(const TimelineTitle::Memory& memory, Bytes minimum, Bytes high_water) {
  return {{"budget", memory.budget.count()},
          {"minimum", minimum.count()},
          {"high_water", (high_water + memory.fixed).count()}};
}

Json gap_json(const ScheduleGap& gap) {
  return {{"nvme_bytes", gap.nvme.count()},   {"nvme_bound_bytes", gap.nvme_bound.count()},
          {"link_bytes", gap.link.count()},   {"link_bound_bytes", gap.link_bound.count()},
          {"predicted_seconds", gap.seconds}, {"bound_seconds", gap.seconds_bound}};
}

}  // namespace

ReportFiles::ReportFiles(const TrainJob& job, const Facts& facts)
    : job_(job), facts_(facts), title_(make_title(job, facts)) {
  if (!job.timeline.empty()) {
    trace_.emplace(job.timeline, title_);
  }
}

void ReportFiles::begin(int64_t resumed_from) {
  first_step_ = resumed_from + 1;
  if (!has_steps()) {
    return;
  }
  const int64_t steady = std::min(first_step_ + kSteady, job_.steps);
  traced_ = job_.timeline_steps.value_or(
      StepRange{steady, std::min(steady + kTracedByDefault - 1, job_.steps)});
  write(nullptr);
}

bool ReportFiles::is_kept(int64_t step) const {
  return std::find(kKept.begin(), kKept.end(), step - first_step_) != kKept.end();
}

/// From here on the schedule hardly changes. A run that ends before has its gap at the end.
int64_t ReportFiles::last_kept() const {
  return first_step_ + kKept.back();
}

bool ReportFiles::is_traced(int64_t step) const {
  return trace_ && traced_.first <= step && step <= traced_.last;
}

std::optional<TimelineRecorder> ReportFiles::record(
    int64_t step, std::chrono::steady_clock::time_point begin) const {
  if (!is_kept(step) && !is_traced(step)) {
    return std::nullopt;
  }
  return TimelineRecorder(step, begin);
}

void ReportFiles::end_step(const StepReport& report, std::optional<TimelineRecorder> recorder) {
  if (!recorder) {
    return;
  }
  const StepTimeline timeline = std::move(*recorder).finish(report.seconds);
  if (is_traced(report.step)) {
    trace(timeline);
  }
  if (is_kept(report.step)) {
    keep_timeline(timeline);
    if (report.step == last_kept()) {
      gap_ = facts_.engine->schedule_gap();  // takes long: not of schedules that will be replaced
    }
    write(nullptr);
  }
}

void ReportFiles::end(const TrainSummary& summary) {
  if (!has_steps()) {
    return;  // what is there tells of the steps that were made
  }
  gap_ = summary.gap;
  write(&summary);
  if (trace_ && !has_traced_) {
    log_warning(
        "{} holds no step: {} to {} were to be recorded (--timeline-steps), and the run made "
        "{} to {}",
        job_.timeline, traced_.first, traced_.last, first_step_, summary.steps);
  }
}

void ReportFiles::trace(const StepTimeline& timeline) {
  try {
    trace_->write(timeline);
    has_traced_ = true;
  } catch (const IoError& error) {
    log_warning("the timeline ends before step {}: {}", timeline.step, error.what());
    trace_.reset();
  }
}

void ReportFiles::keep_timeline(const StepTimeline& timeline) {
  try {
    write_timeline_file(job_.output_folder + "/" + kTimelineFile, title_, timeline);
  } catch (const IoError& error) {
    log_warning("no timeline for `headrace report`: {}", error.what());
  }
}

void ReportFiles::write(const TrainSummary* summary) {
  const Engine& engine = *facts_.engine;
  const MemoryPlan& plan = engine.plan();
  Json json;
  json["format"] = kReportFormat;
  json["state"] = summary == nullptr     ? "running"
                  : summary->interrupted ? "interrupted"
                                         : "finished";
  json["steps"] = job_.steps;
  json["resumed_from"] = first_step_ - 1;
  json["tokens_per_step"] =
      job_.seq * facts_.options->shape.batch * facts_.options->memory.micro_batches;
  json["model"] = model_json(job_, facts_);
  json["plan"] = plan_json(plan);
  if (title_.device) {
    json["memory"]["device"] =
        memory_json(*title_.device, plan.minimum_device, engine.device_high_water());
  }
  json["memory"]["host"] = memory_json(title_.host, plan.minimum_host, engine.host_high_water());
  json["policy"] = facts_.options->policy;
  json["nvme_io"] = engine.io_description();
  json["nvme_to_device"] = engine.direct_description();
  json["attention"] = engine.attention_description();
  json["settings"] = *facts_.settings;
  if (gap_) {
    json["gap"] = gap_json(*gap_);
  }
  try {
    model::replace_file(job_.output_folder + "/" + kReportFile,
                        json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } catch (const IoError& error) {
    log_warning("no report.json for `headrace report`: {}", error.what());
  }
}

}  // namespace headrace::engine
