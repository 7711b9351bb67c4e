#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "aio/probe.h"
#include "base/check.h"

namespace headrace::aio {

namespace {

constexpr int kBarWidth = 24;
constexpr double kGiga = 1e9;

const ProbePoint& best_of(const ProbeReport& report) {
  HR_CHECK(report.best < report.points.size(), "best={} points={}", report.best,
           report.points.size());
  return report.points[report.best];
}

std::string bar(double value, double highest) {
  const int length =
      highest > 0 ? static_cast<int>(std::lround(std::clamp(value / highest, 0.0, 1.0) * kBarWidth))
                  : 0;
  return std::string(static_cast<size_t>(length), '#') +
         std::string(static_cast<size_t>(kBarWidth - length), '.');
}

std::string line(const ProbePoint& point, double highest, bool is_best) {
  std::string text = fmt::format("{} {:>8} {:>6}", is_best ? '*' : ' ',
                                 format_bytes(point.block_size), point.queue_depth);
  if (!point.is_measured) {
    return text + "   not measured: " + point.left_out + "\n";
  }
  return text + fmt::format(" {:>7.2f} {:>7.2f} {:>7.2f}  {}\n", point.read_rate / kGiga,
                            point.write_rate / kGiga, point.mixed_rate / kGiga,
                            bar(point.mixed_rate, highest));
}

}  // namespace

std::string render(const ProbeReport& report) {
  const ProbePoint& best = best_of(report);
  double highest = 0;
  for (const ProbePoint& point : report.points) {
    highest = std::max(highest, point.mixed_rate);
  }
  std::string text = fmt::format("{}: {}{}{}, {} free\n{}; test file {}, {}\n", report.path,
                                 report.file_system, report.device.empty() ? "" : " on ",
                                 report.device, format_bytes(report.free_space), report.engine,
                                 format_bytes(report.file_size), format_duration(report.seconds));
  if (!report.is_direct) {
    text += "Direct I/O is refused here: these rates include the page cache of the host.\n";
  }
  text += fmt::format("\n  {:>8} {:>6} {:>7} {:>7} {:>7}  {}\n", "block", "depth", "read", "write",
                      "mixed", "mixed, GB/s (10^9 bytes per second)");
  for (size_t i = 0; i < report.points.size(); ++i) {
    text += line(report.points[i], highest, i == report.best);
  }
  text += fmt::format(
      "\nBest (*): {} x {}: read p50 {:.1f} ms, p99 {:.1f} ms; write p50 {:.1f} ms, p99 {:.1f} ms\n"
      "For the configuration:\n{}\n",
      format_bytes(best.block_size), best.queue_depth, best.read_latency.p50_ms,
      best.read_latency.p99_ms, best.write_latency.p50_ms, best.write_latency.p99_ms,
      aio_block(report));
  return text;
}

std::string aio_block(const ProbeReport& report) {
  const ProbePoint& best = best_of(report);
  const nlohmann::ordered_json block = {{"aio",
                                         {{"block_size", best.block_size.count()},
                                          {"queue_depth", best.queue_depth},
                                          {"intra_op_parallelism", 1},
                                          {"single_submit", false},
                                          {"overlap_events", true}}}};
  return block.dump(2);
}

}  // namespace headrace::aio
