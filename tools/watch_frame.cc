#include "tools/watch_frame.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/metrics_log.h"

namespace headrace::tools {

namespace {

constexpr size_t kLabelColumns = 15;
constexpr size_t kSmallestBar = 4;
constexpr size_t kLargestBar = 40;
constexpr size_t kWide = 72;  ///< columns from which there is room for figures beside a bar
constexpr size_t kMessages = 4;

/// "[####....]"; `share` may be anything.
std::string bar(double share, size_t columns) {
  const double inside = static_cast<double>(columns);
  const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * inside + 0.5);
  return "[" + std::string(full, '#') + std::string(columns - full, '.') + "]";
}

std::string rate(double bytes_per_second) {
  return format_bytes(Bytes(static_cast<int64_t>(bytes_per_second))) + "/s";
}

class Frame {
 public:
  Frame(const WatchState& state, size_t columns) : state_(state), columns_(columns) {}

  std::vector<std::string> lines() {
    add_progress();
    if (state_.report) {
      add_step(*state_.report);
      add_lanes(*state_.report);
      add_tiers(*state_.report);
    }
    add_messages();
    return std::move(lines_);
  }

 private:
  bool is_wide() const { return columns_ >= kWide; }
  size_t bar_columns(size_t beside) const {
    const size_t rest = columns_ > beside + 2 ? columns_ - beside - 2 : 0;
    return std::clamp(rest, kSmallestBar, kLargestBar);
  }

  void add(const std::string& text) {
    std::string line;
    for (const char sign : text) {
      const bool is_printable = sign >= ' ' && sign <= '~';
      line += is_printable ? sign : '?';
    }
    line.resize(std::min(line.size(), columns_));
    lines_.push_back(line);
  }

  void add_progress() {
    const double share =
        state_.total > 0 ? static_cast<double>(state_.done) / static_cast<double>(state_.total) : 0;
    add(state_.phase == "training"
            ? fmt::format("headrace  step {} of {}{}", state_.done, state_.total,
                          state_.is_stopping ? "  stopping after this step" : "")
            : fmt::format("headrace  {}{}", state_.phase, state_.is_stopping ? "  stopping" : ""));
    const std::string left =
        state_.seconds_left ? format_duration(*state_.seconds_left) + " left" : "";
    add(fmt::format("{} {:3.0f} %  {}", bar(share, bar_columns(9 + left.size())), share * 100,
                    left));
  }

  void add_step(const engine::StepReport& report) {
    const engine::Binding binding = engine::binding_of(report.engine.run);
    std::string validation;
    if (state_.validation_loss) {
      validation = fmt::format("  validation {:.4f}", *state_.validation_loss);
    }
    add("");
    add(fmt::format("loss {:.4f}{}{}", report.loss, validation, report.skipped ? "  skipped" : ""));
    add(fmt::format("norm {:.3f}  lr {:.2e}", report.gradient_norm, report.learning_rate));
    add(fmt::format("{:.0f} tokens/s  step {} (now {})", report.tokens_per_second,
                    format_duration(report.seconds), format_duration(state_.seconds_in_step)));
    add(fmt::format(
        "bound by {} {:.0f} %{}", scheduler::to_string(binding.lane), binding.share * 100,
        report.share_of_bound ? fmt::format(", {:.0f} % of bound", *report.share_of_bound * 100)
                              : ""));
  }

  void add_lanes(const engine::StepReport& report) {
    const engine::RunReport& run = report.engine.run;
    const double total = std::max(run.split.total, 1e-9);
    const tiers::TierTraffic& bytes = report.engine.traffic;
    const std::array<int64_t, scheduler::kLaneCount> moved = {
        bytes.nvme_read, bytes.nvme_write, bytes.host_to_device, bytes.device_to_host, 0, 0};
    add("");
    add("lanes, busy in the last step");
    for (size_t lane = 0; lane < run.busy.size(); ++lane) {
      const double share = run.busy[lane] / total;
      const size_t beside = kLabelColumns + 7 + (is_wide() ? 12 : 0);
      std::string line = fmt::format("{:<15}{} {:3.0f} %",
                                     scheduler::to_string(static_cast<scheduler::Lane>(lane)),
                                     bar(share, bar_columns(beside)), share * 100);
      if (is_wide() && moved[lane] > 0) {
        line += "  " + format_bytes(Bytes(moved[lane]));
      }
      add(line);
    }
  }

  void add_tier(const char* name, const engine::TierUse& use, Bytes now) {
    const Bytes used = now + use.fixed;
    const double budget = std::max(1.0, static_cast<double>(use.budget().count()));
    const std::string beside =
        fmt::format("{} of {}", format_bytes(used), format_bytes(use.budget()));
    const std::string most = fmt::format("  at most {}", format_bytes(use.used()));
    const size_t taken = kLabelColumns + 1 + beside.size() + (is_wide() ? most.size() : 0);
    if (taken + kSmallestBar + 2 <= columns_) {
      add(fmt::format("{:<15}{} {}{}", name,
                      bar(static_cast<double>(used.count()) / budget, bar_columns(taken)), beside,
                      is_wide() ? most : ""));
    } else {
      add(fmt::format("{} {}", name, beside));
    }
  }

  void add_tiers(const engine::StepReport& report) {
    const engine::MemoryUse& memory = report.engine.memory;
    add("");
    add("tiers, now");
    if (memory.device.budget() > Bytes(0)) {
      add_tier("device", memory.device, state_.gauges.device_used);
    }
    add_tier("host", memory.host, state_.gauges.host_used);
    if (memory.on_nvme > Bytes(0)) {
      add(fmt::format("{:<15}{} of files", "nvme", format_bytes(memory.on_nvme)));
      add(fmt::format("{:<15}{} reads, {} writes", "queue", state_.gauges.reads_in_flight,
                      state_.gauges.writes_in_flight));
      add(fmt::format("{:<15}{}, {}", "nvme rates", rate(state_.read_rate),
                      rate(state_.write_rate)));
    }
  }

  void add_messages() {
    const size_t count = std::min(kMessages, state_.messages.size());
    if (count > 0) {
      add("");
    }
    for (size_t i = state_.messages.size() - count; i < state_.messages.size(); ++i) {
      add(state_.messages[i]);
    }
  }

  const WatchState& state_;
  size_t columns_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> watch_frame(const WatchState& state, size_t columns, size_t rows) {
  std::vector<std::string> lines = Frame(state, columns).lines();
  if (lines.size() > rows) {  // first the empty ones, then the last
    std::erase(lines, "");
    lines.resize(std::min(lines.size(), rows));
  }
  return lines;
}

}  // namespace headrace::tools
