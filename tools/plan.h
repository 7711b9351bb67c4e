#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner/advice.h"
#include "engine/planner/hardware.h"
#include "engine/planner/step_plan.h"

namespace headrace::tools {

/// All that `headrace plan` says about one run.
struct PlanReport {
  std::string model;   ///< as it was named
  std::string config;  ///< file
  engine::PlanQuestion question;
  engine::Hardware hardware;
  std::string host_budget_source;        ///< "given", or where it comes from
  std::optional<engine::StepPlan> plan;  ///< empty: it does not fit
  engine::MinimumBudgets minimum;
  std::string refusal;
  std::optional<engine::Advice> advice;  ///< of a run that fits; empty: not asked for
  std::vector<engine::Remedy> remedies;
  std::optional<double> dataset_tokens;
};

/// Figures that follow from a plan.
struct Outlook {
  double nvme_writes_per_day = 0;   ///< bytes
  double drive_writes_per_day = 0;  ///< of the drives' size; 0: not known
  double days_until_worn = 0;       ///< rated endurance; 0: not known, or nothing is written
  std::optional<double> dataset_days;
};
Outlook outlook_of(const PlanReport& report);

/// One row of `plan --sweep`.
struct SweepRow {
  std::vector<std::string> values;  ///< of the swept keys
  engine::PlanAnswer answer;
};

std::string render(const PlanReport& report);
nlohmann::json to_json(const PlanReport& report);

std::string render(const std::vector<std::string>& keys, const std::vector<SweepRow>& rows);
nlohmann::json to_json(const std::vector<std::string>& keys, const std::vector<SweepRow>& rows);

}  // namespace headrace::tools
