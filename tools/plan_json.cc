#include <nlohmann/json.hpp>

#include "tools/plan.h"

namespace headrace::tools {

namespace {

using nlohmann::json;

json rate_json(const engine::Rate& rate) {
  return {{"per_second", rate.per_second}, {"source", rate.source}};
}

json minimum_json(const engine::MinimumBudgets& minimum) {
  return {{"device", minimum.device.count()},
          {"host", minimum.host.count()},
          {"nvme", minimum.nvme.count()}};
}

json hardware_json(const engine::Hardware& hardware) {
  return {{"compute", rate_json(hardware.compute)},
          {"compute_fp8", rate_json(hardware.compute_fp8)},
          {"cpu_optimizer", rate_json(hardware.cpu_memory)},
          {"device_memory", rate_json(hardware.device_memory)},
          {"host_to_device", rate_json(hardware.host_to_device)},
          {"device_to_host", rate_json(hardware.device_to_host)},
          {"nvme_read", rate_json(hardware.nvme_read)},
          {"nvme_write", rate_json(hardware.nvme_write)},
          {"nvme_both", rate_json(hardware.nvme_both)},
          {"drive_bytes", hardware.drive_size.count()},
          {"endurance_bytes", hardware.endurance.count()},
          {"notes", hardware.notes}};
}

json step_json(const engine::StepPlan& plan) {
  json lanes = json::object();
  for (size_t i = 0; i < plan.busy.size(); ++i) {
    lanes[std::string(scheduler::to_string(static_cast<scheduler::Lane>(i)))] = plan.busy[i];
  }
  return {{"seconds", plan.seconds},
          {"bound_seconds", plan.bound_seconds},
          {"tokens", plan.tokens},
          {"tokens_per_second", plan.tokens_per_second()},
          {"busy_seconds", lanes},
          {"binding_lane", scheduler::to_string(plan.binding())},
          {"nvme_read", plan.traffic.nvme_read.count()},
          {"nvme_write", plan.traffic.nvme_write.count()},
          {"host_to_device", plan.traffic.host_to_device.count()},
          {"device_to_host", plan.traffic.device_to_host.count()},
          {"nvme_bound", plan.nvme_bound.count()},
          {"link_bound", plan.link_bound.count()}};
}

json state_json(const engine::StepPlan& plan) {
  const auto object = [](Bytes bytes, Tier tier) -> json {
    return {{"bytes", bytes.count()}, {"tier", to_string(tier)}};
  };
  const engine::Placement& placement = plan.placement;
  const auto levels = engine::count_levels(plan.recompute);
  return {
      {"parameters", plan.parameters.count()},
      {"weights", object(plan.state.weights, placement.weights)},
      {"optimizer_state", object(plan.state.optimizer, placement.optimizer)},
      {"optimizer_on_device", object(plan.state.optimizer_on_device, Tier::device)},
      {"gradients", object(plan.state.gradients, placement.gradients)},
      {"activations", object(plan.state.activations, placement.activations)},
      {"saved", object(plan.state.saved, placement.activations)},
      {"recompute",
       {{"block", levels[model::Recompute::block]},
        {"mlp", levels[model::Recompute::mlp]},
        {"none", levels[model::Recompute::none]}}},
      {"vocabulary_tiles", plan.vocab_tiles},
      {"block_tiles", {{"attention", plan.attention_tiles}, {"mlp", plan.mlp_tiles}}},
      {"workspace", object(plan.fixed, placement.compute)},
      {"nvme_for_good", plan.nvme_for_good.count()},
      {"shards", plan.shards},
      {"peak_device", plan.peak_device.count()},
      {"peak_host", plan.peak_host.count()},
      {"accumulation",
       plan.order == engine::AccumulationOrder::layer_major ? "layer_major" : "micro_batch_major"},
      {"updates", plan.update_mode == engine::UpdateMode::after_norm    ? "after_norm"
                  : plan.update_mode == engine::UpdateMode::speculative ? "speculative"
                                                                        : "during_backward"}};
}

json recommendation_json(const std::optional<engine::Recommendation>& recommendation) {
  if (!recommendation) {
    return nullptr;
  }
  return {{"bytes", recommendation->budget.count()},
          {"seconds", recommendation->plan.seconds},
          {"best_seconds", recommendation->best_seconds}};
}

json outlook_json(const PlanReport& report) {
  const Outlook outlook = outlook_of(report);
  json result = {{"nvme_writes_per_day", outlook.nvme_writes_per_day},
                 {"drive_writes_per_day", nullptr},
                 {"days_until_worn", nullptr},
                 {"dataset_days", nullptr}};
  if (outlook.drive_writes_per_day > 0) {
    result["drive_writes_per_day"] = outlook.drive_writes_per_day;
  }
  if (outlook.days_until_worn > 0) {
    result["days_until_worn"] = outlook.days_until_worn;
  }
  if (outlook.dataset_days) {
    result["dataset_days"] = *outlook.dataset_days;
  }
  return result;
}

}  // namespace

json to_json(const PlanReport& report) {
  const engine::EngineOptions& options = report.question.options;
  const engine::MemoryRequest& memory = options.memory;
  json result = {
      {"model", report.model},
      {"config", report.config},
      {"fits", report.plan.has_value()},
      {"batch",
       {{"micro_batch", options.shape.batch},
        {"seq_len", options.shape.seq},
        {"micro_batches", memory.micro_batches},
        {"tokens_per_step", report.question.tokens_per_step()}}},
      {"hardware", hardware_json(report.hardware)},
      {"budgets",
       {{"device", memory.device_memory ? json(memory.device_memory->count()) : json()},
        {"host", memory.host_memory.count()},
        {"host_source", report.host_budget_source},
        {"nvme", memory.nvme_budget.count()}}},
      {"minimum", minimum_json(report.minimum)},
  };
  if (!report.plan) {
    result["refusal"] = report.refusal;
    result["remedies"] = json::array();
    for (const engine::Remedy& each : report.remedies) {
      result["remedies"].push_back(
          {{"change", each.change}, {"minimum", minimum_json(each.minimum)}, {"fits", each.fits}});
    }
    return result;
  }
  result["state"] = state_json(*report.plan);
  result["step"] = step_json(*report.plan);
  result["outlook"] = outlook_json(report);
  if (!report.advice) {
    return result;
  }
  const engine::Advice& advice = *report.advice;
  result["recommended"] = {{"device", recommendation_json(advice.device)},
                           {"host", recommendation_json(advice.host)},
                           {"nvme", {{"bytes", report.plan->nvme_with_snapshot().count()}}}};
  result["suggestions"] = json::array();
  for (const engine::Suggestion& each : advice.suggestions) {
    result["suggestions"].push_back({{"change", each.change},
                                     {"tokens_per_second_ratio", each.speedup},
                                     {"step", step_json(each.plan)}});
  }
  return result;
}

json to_json(const std::vector<std::string>& keys, const std::vector<SweepRow>& rows) {
  json result = json::array();
  for (const SweepRow& row : rows) {
    json entry = json::object();
    for (size_t i = 0; i < keys.size(); ++i) {
      entry[keys[i]] = row.values[i];
    }
    if (row.answer.plan) {
      entry["fits"] = true;
      entry["step"] = step_json(*row.answer.plan);
    } else {
      entry["fits"] = false;
      entry["refusal"] = row.answer.refusal;
    }
    result.push_back(std::move(entry));
  }
  return result;
}

}  // namespace headrace::tools
