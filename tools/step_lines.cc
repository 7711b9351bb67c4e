#include "tools/step_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/process.h"
#include "engine/metrics_log.h"

namespace headrace::tools {

namespace {

std::string tier_line(std::string_view name, const engine::TierUse& use) {
  std::string line = fmt::format("  memory           {} {} of {} (", name, format_bytes(use.used()),
                                 format_bytes(use.budget()));
  for (size_t kind = 0; kind < engine::kObjectKinds; ++kind) {
    if (use.by_kind[kind] > Bytes(0)) {
      line += fmt::format("{} {}, ", engine::to_string(static_cast<engine::ObjectKind>(kind)),
                          format_bytes(use.by_kind[kind]));
    }
  }
  return line + fmt::format("workspace {})\n", format_bytes(use.fixed));
}

}  // namespace

std::string step_line(const engine::StepReport& report) {
  const engine::Binding binding = engine::binding_of(report.engine.run);
  return fmt::format(
      "step {:>5}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {:>7.0f} tokens/s  {} {:.0f} %{}{}",
      report.step, report.loss, report.gradient_norm, report.learning_rate,
      report.tokens_per_second, scheduler::to_string(binding.lane), binding.share * 100,
      report.share_of_bound ? fmt::format(", {:.0f} % of bound", *report.share_of_bound * 100) : "",
      report.skipped ? fmt::format("  skipped (loss scale {:g})", report.loss_scale) : "");
}

std::string phases_line(const engine::StepPhases& phases) {
  constexpr double kMillisecond = 1e-3;
  return fmt::format("  time (ms)        forward {:.2f} | backward {:.2f} | step {:.2f}",
                     phases.forward / kMillisecond, phases.backward / kMillisecond,
                     phases.step / kMillisecond);
}

std::string split_line(const engine::TimeSplit& split) {
  const double total = std::max(split.total, 1e-9);
  return fmt::format(
      "  time             compute {:.0f} %, CPU optimizer {:.0f} %, waiting for: nvme read {:.0f} "
      "%, nvme write {:.0f} %, host-device copy {:.0f} %; other {:.0f} %",
      100 * split.compute / total, 100 * split.cpu_optimizer / total, 100 * split.nvme_read / total,
      100 * split.nvme_write / total, 100 * (split.host_to_device + split.device_to_host) / total,
      100 * split.other / total);
}

std::string memory_lines(const engine::MemoryUse& use) {
  std::string lines;
  if (use.device.budget() > Bytes(0)) {
    lines += tier_line("device", use.device);
  }
  lines += tier_line("host", use.host);
  return lines + fmt::format("  memory           resident {}, at most {} so far; on nvme {}",
                             format_bytes(resident_bytes()), format_bytes(peak_resident_bytes()),
                             format_bytes(use.on_nvme));
}

}  // namespace headrace::tools
