#include "engine/config/resolver.h"

namespace headrace::engine {

namespace {

/// Of the blocks that are alike but for their type.
template <class Block>
MonitorSettings monitor_of(const Block& block) {
  return {
      .enabled = block.enabled(), .output_path = block.output_path(), .job_name = block.job_name()};
}

}  // namespace

void Resolver::resolve_reports() {
  Settings& settings = result_.settings;
  if (config_.has_steps_per_print()) {
    settings.steps_per_print = config_.steps_per_print();
  }
  settings.wall_clock_breakdown = config_.wall_clock_breakdown();
  settings.memory_breakdown = config_.memory_breakdown();
  settings.tensorboard = monitor_of(config_.tensorboard());
  settings.csv_monitor = monitor_of(config_.csv_monitor());
}

}  // namespace headrace::engine
