#include <fmt/format.h>

#include <algorithm>

#include "tools/plan.h"
#include "tools/text.h"

namespace headrace::tools {

namespace {

constexpr double kSecondsPerDay = 86400;

double as_double(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

std::string tokens_text(double tokens) {
  return format_count(tokens);
}

std::string batch_text(const engine::PlanQuestion& question) {
  const engine::EngineOptions& options = question.options;
  return fmt::format("{} x {} tokens a micro-batch, {} micro-batches a step: {} tokens",
                     options.shape.batch, options.shape.seq, options.memory.micro_batches,
                     question.tokens_per_step());
}

void add_rates(const engine::Hardware& hardware, const engine::EngineOptions& options,
               std::string& text) {
  text += "Rates\n";
  const auto row = [&](const char* what, const engine::Rate& rate, const char* unit) {
    text += fmt::format("  {:<16} {:>12}   {}\n", what, engine::format_rate(rate.per_second, unit),
                        rate.source);
  };
  row("compute", hardware.compute, "FLOP/s");
  if (options.fp8_forward && hardware.compute_fp8.per_second > 0) {
    row("compute in fp8", hardware.compute_fp8, "FLOP/s");
  }
  row("CPU optimizer", hardware.cpu_memory, "B/s");
  if (options.memory.device_memory) {
    row("device memory", hardware.device_memory, "B/s");
    row("host to device", hardware.host_to_device, "B/s");
    row("device to host", hardware.device_to_host, "B/s");
  }
  row("nvme read", hardware.nvme_read, "B/s");
  row("nvme write", hardware.nvme_write, "B/s");
  if (hardware.nvme_both.per_second > 0) {
    row("nvme both", hardware.nvme_both, "B/s");
  }
  for (const std::string& note : hardware.notes) {
    text += fmt::format("  note: {}\n", note);
  }
}

void add_state(const engine::StepPlan& plan, DType dtype, std::string& text) {
  text += fmt::format("{:<18} {:>10} {:>10}\n", "What goes where", "elements", "bytes");
  const auto row = [&](const char* what, double elements, Bytes size, std::string_view where) {
    text += fmt::format("  {:<18} {:>8} {:>10}   {}\n", what,
                        elements > 0 ? format_count(elements) : "", format_bytes(size), where);
  };
  const auto parameters = static_cast<double>(plan.parameters.count());
  const auto home = [](Tier tier) { return fmt::format("home {}", to_string(tier)); };
  const auto down = [](Tier tier) { return fmt::format("down to {}", to_string(tier)); };
  const engine::Placement& placement = plan.placement;
  row("weights", parameters, plan.state.weights, home(placement.weights));
  const bool is_split =
      plan.state.optimizer_on_device > Bytes(0) && placement.optimizer != Tier::device;
  row("optimizer state", parameters, plan.state.optimizer,
      fmt::format("{}, in {} shards{}", home(placement.optimizer), plan.shards,
                  is_split ? fmt::format(", {} of it on device",
                                         format_bytes(plan.state.optimizer_on_device))
                           : ""));
  row("gradients", parameters, plan.state.gradients, down(placement.gradients));
  row("activations", as_double(plan.state.activations) / as_double(bytes_for(Elements(1), dtype)),
      plan.state.activations, down(placement.activations));
  row("saved for backward", 0, plan.state.saved, engine::describe(plan.recompute));
  if (plan.vocab_tiles > 1) {
    text += fmt::format("  {:<18} {:>8} {:>10}   of {} entries each\n", "vocabulary tiles",
                        plan.vocab_tiles, "", plan.vocab_tile_entries);
  }
  if (plan.mlp_tiles > 0) {
    text += fmt::format("  {:<18} {:>8} {:>10}   {} of attention, {} of the MLP\n",
                        "tiles of a block", plan.attention_tiles + plan.mlp_tiles, "",
                        plan.attention_tiles, plan.mlp_tiles);
  }
  row("workspace", 0, plan.fixed, fmt::format("in {}", to_string(placement.compute)));
}

std::string recommended_text(const std::optional<engine::Recommendation>& recommendation) {
  return recommendation ? format_bytes(recommendation->budget) : "";
}

void add_budgets(const PlanReport& report, std::string& text) {
  const engine::MemoryRequest& memory = report.question.options.memory;
  text += fmt::format("{:<18} {:>10} {:>10} {:>12} {:>10}\n", "Budgets", "given", "minimum",
                      "recommended", "used");
  const auto row = [&](const char* tier, Bytes given, Bytes minimum, const std::string& recommended,
                       Bytes used) {
    std::string line = fmt::format("  {:<16} {:>10} {:>10} {:>12} {:>10}", tier,
                                   format_bytes(given), format_bytes(minimum), recommended,
                                   report.plan ? format_bytes(used) : std::string());
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  const engine::StepPlan none;
  const engine::StepPlan& plan = report.plan ? *report.plan : none;
  const engine::Advice advice = report.advice.value_or(engine::Advice());
  if (memory.device_memory) {
    row("device", *memory.device_memory, report.minimum.device, recommended_text(advice.device),
        plan.peak_device);
  }
  row("host", memory.host_memory, report.minimum.host, recommended_text(advice.host),
      plan.peak_host);
  if (report.minimum.nvme.count() > 0) {
    row("nvme", memory.nvme_budget, report.minimum.nvme,
        report.plan ? format_bytes(report.plan->nvme_with_snapshot()) : "", report.minimum.nvme);
  }
  if (report.host_budget_source != "given") {
    text += fmt::format("  host budget: {}\n", report.host_budget_source);
  }
}

void add_step(const engine::StepPlan& plan, std::string& text) {
  text += fmt::format("{:<18} {:>10} {:>6}\n", "One step", "busy", "share");
  const scheduler::Lane binding = plan.binding();
  for (size_t i = 0; i < plan.busy.size(); ++i) {
    if (plan.busy[i] > 0) {
      const auto lane = static_cast<scheduler::Lane>(i);
      text += fmt::format("  {:<16} {:>10} {:>4.0f} %{}\n", scheduler::to_string(lane),
                          format_duration(plan.busy[i]), 100 * plan.busy[i] / plan.seconds,
                          lane == binding ? "   binds" : "");
    }
  }
  text += fmt::format("  {:<16} {:>10}   bound {}, {}\n", "predicted",
                      format_duration(plan.seconds), format_duration(plan.bound_seconds),
                      over_bound(plan.seconds, plan.bound_seconds));
  text += fmt::format(
      "  bytes            nvme read {}, nvme write {} (bound {}, {}),\n"
      "                   host to device {}, device to host {} (bound {}, {})\n",
      format_bytes(plan.traffic.nvme_read), format_bytes(plan.traffic.nvme_write),
      format_bytes(plan.nvme_bound),
      over_bound(as_double(plan.traffic.nvme_read + plan.traffic.nvme_write),
                 as_double(plan.nvme_bound)),
      format_bytes(plan.traffic.host_to_device), format_bytes(plan.traffic.device_to_host),
      format_bytes(plan.link_bound),
      over_bound(as_double(plan.traffic.host_to_device + plan.traffic.device_to_host),
                 as_double(plan.link_bound)));
}

void add_outlook(const PlanReport& report, std::string& text) {
  const engine::StepPlan& plan = *report.plan;
  const Outlook outlook = outlook_of(report);
  text +=
      fmt::format("Outlook\n  {:<16} {:.4g} tokens/s, {} a day\n", "throughput",
                  plan.tokens_per_second(), tokens_text(plan.tokens_per_second() * kSecondsPerDay));
  if (outlook.dataset_days) {
    text += fmt::format("  {:<16} {} tokens in {:.3g} days\n", "data set",
                        tokens_text(*report.dataset_tokens), *outlook.dataset_days);
  }
  if (outlook.nvme_writes_per_day > 0) {
    text += fmt::format("  {:<16} {} a day", "nvme writes",
                        format_bytes(Bytes(static_cast<int64_t>(outlook.nvme_writes_per_day))));
    if (outlook.drive_writes_per_day > 0) {
      text += fmt::format(": {:.3g} drive writes a day of {}", outlook.drive_writes_per_day,
                          format_bytes(report.hardware.drive_size));
    }
    if (outlook.days_until_worn > 0) {
      text += fmt::format("; the rated endurance lasts {:.3g} days", outlook.days_until_worn);
    }
    text += "\n";
  }
}

void add_suggestions(const engine::Advice& advice, std::string& text) {
  if (advice.suggestions.empty()) {
    text += "Suggestions      none: nothing that was tried makes it 3 % faster\n";
    return;
  }
  text += fmt::format("{:<66} {:>8} {:>8}   {}\n", "Suggestions, each alone", "tokens/s", "change",
                      "busiest lane");
  for (const engine::Suggestion& each : advice.suggestions) {
    text += fmt::format("  {:<64} {:>8.4g} {:>+6.0f} %   {} {:.0f} %\n", each.change,
                        each.plan.tokens_per_second(), 100 * (each.speedup - 1),
                        scheduler::to_string(each.plan.binding()), 100 * each.plan.binding_share());
  }
}

void add_remedies(const PlanReport& report, std::string& text) {
  if (report.remedies.empty()) {
    return;
  }
  const bool has_device = report.question.options.memory.device_memory.has_value();
  text += fmt::format("{:<58} {:>10} {:>10} {:>10}\n", "What lowers the minimum, each alone",
                      has_device ? "device" : "", "host", "nvme");
  for (const engine::Remedy& each : report.remedies) {
    text += fmt::format("  {:<56} {:>10} {:>10} {:>10}   {}\n", each.change,
                        has_device ? format_bytes(each.minimum.device) : std::string(),
                        format_bytes(each.minimum.host), format_bytes(each.minimum.nvme),
                        each.fits ? "fits" : "does not fit either");
  }
}

}  // namespace

Outlook outlook_of(const PlanReport& report) {
  const engine::StepPlan& plan = *report.plan;
  Outlook outlook;
  outlook.nvme_writes_per_day = as_double(plan.traffic.nvme_write) / plan.seconds * kSecondsPerDay;
  if (report.hardware.drive_size.count() > 0) {
    outlook.drive_writes_per_day =
        outlook.nvme_writes_per_day / as_double(report.hardware.drive_size);
  }
  if (report.hardware.endurance.count() > 0 && outlook.nvme_writes_per_day > 0) {
    outlook.days_until_worn = as_double(report.hardware.endurance) / outlook.nvme_writes_per_day;
  }
  if (report.dataset_tokens) {
    outlook.dataset_days = *report.dataset_tokens / plan.tokens_per_second() / kSecondsPerDay;
  }
  return outlook;
}

std::string render(const PlanReport& report) {
  const model::ModelConfig& config = report.question.config;
  const engine::EngineOptions& options = report.question.options;
  std::string text =
      fmt::format("{:<18} {}: {} blocks of width {}, vocabulary {}, {} parameters, {}\n", "Model",
                  report.model, config.layers, config.hidden_size, config.vocab_size,
                  format_count(static_cast<double>(model::parameter_count(config).count())),
                  to_string(options.dtype));
  text += fmt::format("{:<18} {}\n", "Batch", batch_text(report.question));
  add_rates(report.hardware, options, text);
  if (report.plan) {
    add_state(*report.plan, options.dtype, text);
  }
  add_budgets(report, text);
  if (!report.plan) {
    add_remedies(report, text);
    text += fmt::format("{:<18} does not fit\n", "Verdict");
    return text;
  }
  add_step(*report.plan, text);
  add_outlook(report, text);
  text += fmt::format("{:<18} fits\n", "Verdict");
  if (report.advice) {
    add_suggestions(*report.advice, text);
  }
  return text;
}

std::string render(const std::vector<std::string>& keys, const std::vector<SweepRow>& rows) {
  std::string text;
  for (const std::string& key : keys) {
    text += fmt::format("{:>22} ", key);
  }
  text += fmt::format("{:>10} {:>9} {:>10} {:>8} {:>10} {:>10}  binds\n", "step", "tokens/s",
                      "bound", "gap", "nvme", "link");
  for (const SweepRow& row : rows) {
    for (const std::string& value : row.values) {
      text += fmt::format("{:>22} ", value);
    }
    if (!row.answer.plan) {
      const std::string& refusal = row.answer.refusal;  // what to do about it is left out
      text += fmt::format("{:>10}  {}\n", "no", refusal.substr(0, refusal.find(';')));
      continue;
    }
    const engine::StepPlan& plan = *row.answer.plan;
    const engine::StepTraffic& traffic = plan.traffic;
    text += fmt::format("{:>10} {:>9.4g} {:>10} {:>8} {:>10} {:>10}  {} {:.0f} %\n",
                        format_duration(plan.seconds), plan.tokens_per_second(),
                        format_duration(plan.bound_seconds),
                        over_bound(plan.seconds, plan.bound_seconds),
                        format_bytes(traffic.nvme_read + traffic.nvme_write),
                        format_bytes(traffic.host_to_device + traffic.device_to_host),
                        scheduler::to_string(plan.binding()), 100 * plan.binding_share());
  }
  return text;
}

}  // namespace headrace::tools
