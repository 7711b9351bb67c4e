#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "aio/probe.h"
#include "aio/probe_plot.h"
#include "base/check.h"

namespace headrace::aio {

namespace {

constexpr double kGiga = 1e9;
constexpr size_t kSeriesColumns = 60;

const ProbePoint& best_of(const ProbeReport& report) {
  HR_CHECK(report.best < report.points.size(), "best={} points={}", report.best,
           report.points.size());
  return report.points[report.best];
}

/// "  write latency   p50 ..."
std::string line(const char* name, const std::string& text) {
  return fmt::format("{:<16} {}\n", name, text);
}

std::string render_storage(const ProbeReport& report) {
  const StorageIdentity& storage = report.storage;
  std::string text = line("path", report.path);
  text += line("file system",
               fmt::format("{}, {} free", storage.file_system, format_bytes(storage.free_space)));
  std::string device = storage.device.empty() ? "no block device" : storage.device;
  for (const std::string& detail : {storage.model, storage.serial}) {
    device += detail.empty() ? "" : ", " + detail;
  }
  if (storage.rotational) {
    device += *storage.rotational ? ", rotating" : ", not rotating";
  }
  device += storage.numa_node >= 0 ? fmt::format(", NUMA node {}", storage.numa_node)
                                   : std::string(", NUMA node not told");
  text += line("device", device);
  text += line("wear", storage.wear.text());
  return text + line("transfers by",
                     fmt::format("{}; test file {}, {}", report.engine,
                                 format_bytes(report.file_size), format_duration(report.seconds)));
}

std::string render_points(const ProbeReport& report) {
  std::string text = fmt::format("  {:>8} {:>6} {:>8} {:>7} {:>7} {:>7} {:>15}\n", "block", "depth",
                                 "flight", "read", "write", "mixed", "read p50 / p99");
  for (size_t i = 0; i < report.points.size(); ++i) {
    const ProbePoint& point = report.points[i];
    text += fmt::format("{} {:>8} {:>6} {:>8} ", i == report.best ? '*' : ' ',
                        format_bytes(point.block_size), point.queue_depth,
                        format_bytes(point.in_flight()));
    text += point.is_measured ? fmt::format("{:>7.2f} {:>7.2f} {:>7.2f} {:>7.1f} / {:.1f} ms\n",
                                            point.rates.read / kGiga, point.rates.write / kGiga,
                                            point.rates.mixed / kGiga, point.read_latency.p50_ms,
                                            point.read_latency.p99_ms)
                              : "  not measured: " + point.left_out + "\n";
  }
  return text + "  rates in GB/s (10^9 bytes per second); mixed: half reads, half writes, in sum\n";
}

std::string render_latency(const Latency& latency) {
  return fmt::format("p50 {:.2f} ms, p99 {:.2f} ms, p99.9 {:.2f} ms ({} transfers)", latency.p50_ms,
                     latency.p99_ms, latency.p999_ms, latency.transfers);
}

std::string render_modes(const ProbeReport& report) {
  std::string text;
  for (const ModeTrial& trial : report.modes) {
    text += line(text.empty() ? "submission" : "",
                 trial.left_out.empty()
                     ? fmt::format("{:<9} read {:.2f}, write {:.2f}, mixed {:.2f} GB/s{}",
                                   to_string(trial.mode), trial.rates.read / kGiga,
                                   trial.rates.write / kGiga, trial.rates.mixed / kGiga,
                                   trial.mode == report.best_mode ? "  (use this)" : "")
                     : fmt::format("{:<9} {}: {}", to_string(trial.mode),
                                   trial.is_refused ? "refused" : "not measured", trial.left_out));
  }
  return text;
}

std::string render_fio(const FioComparison& fio) {
  if (!fio.refused.empty()) {
    return line("against fio", "not compared: " + fio.refused);
  }
  std::string text;
  for (const FioRow& row : fio.rows) {
    text += line(text.empty() ? "against fio" : "",
                 fmt::format("{:<5} {} here, {} fio: {:.2f}x", to_string(row.kind),
                             format_rate(row.ours), format_rate(row.fio), row.ratio()));
  }
  return text;
}

}  // namespace

std::string render(const ProbeReport& report, const RenderOptions& options) {
  const ProbePoint& best = best_of(report);
  std::string text = render_storage(report) + "\n" + render_points(report) + "\n" +
                     plot_rates(report.points, options.utf8) + "\n";
  text += line("best (*)",
               fmt::format("{} x {}: read {}, write {}, mixed {}", format_bytes(best.block_size),
                           best.queue_depth, format_rate(best.rates.read),
                           format_rate(best.rates.write), format_rate(best.rates.mixed)));
  text += line("read latency", render_latency(best.read_latency));
  text += line("write latency", render_latency(best.write_latency));
  text += render_modes(report);
  text += line("page cache", describe(report.cache));
  text += line("new space", describe(report.thin));
  text += line("sustained write", describe(report.cliff));
  if (!report.writes.rates.empty()) {
    text += line("", fmt::format("{}  {} ms each",
                                 plot_series(report.writes.rates, kSeriesColumns, options.utf8),
                                 static_cast<int>(report.writes.interval_seconds * 1e3)));
  }
  text += line("duplex", describe_duplex(report.duplex));
  return text + (report.fio ? render_fio(*report.fio) : "");
}

std::string aio_block(const ProbeReport& report) {
  const ProbePoint& best = best_of(report);
  const nlohmann::ordered_json block = {{"aio",
                                         {{"block_size", best.block_size.count()},
                                          {"queue_depth", best.queue_depth},
                                          {"intra_op_parallelism", 1}}}};
  return block.dump(2);
}

}  // namespace headrace::aio
