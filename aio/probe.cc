#include "aio/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "aio/probe_load.h"
#include "aio/probe_storage.h"
#include "base/error.h"

namespace headrace::aio {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kFillShare = 0.3;   ///< of the time, at most, for writing the file
constexpr double kLoadShare = 0.75;  ///< of a step's time; the rest is for set-up and the last ends
constexpr double kWarmShare = 0.25;  ///< of a load, not counted
constexpr double kTolerance = 0.05;  ///< two scores this close are equal: rates move more than that
constexpr Bytes kFillBlock{4 << 20};
constexpr int64_t kFillDepth = 32;
constexpr size_t kTransfersMin = 8;  ///< fewer in a load say nothing about its rate
constexpr Bytes kFreeMargin{64 << 20};
constexpr int kKinds = 3;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<ProbePoint> points_for(bool quick) {
  std::vector<ProbePoint> points;
  if (quick) {
    for (const auto& [block, depth] : {std::pair{kMiB, 32}, std::pair{kMiB, 128},
                                       std::pair{kMiB * 4, 32}, std::pair{kMiB * 8, 32}}) {
      points.push_back(ProbePoint{.block_size = block, .queue_depth = depth});
    }
    return points;
  }
  for (const Bytes block : {kKiB * 256, kMiB, kMiB * 4, kMiB * 8}) {
    for (const int depth : {8, 32, 128}) {
      points.push_back(ProbePoint{.block_size = block, .queue_depth = depth});
    }
  }
  return points;
}

Bytes in_flight_of(const ProbePoint& point) {
  return point.block_size * point.queue_depth;
}

Latency latency_of(std::vector<double> milliseconds) {
  if (milliseconds.empty()) {
    return {};
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto at = [&](double share) {
    return milliseconds[static_cast<size_t>(share * static_cast<double>(milliseconds.size() - 1))];
  };
  return Latency{.p50_ms = at(0.5), .p99_ms = at(0.99)};
}

/// One probe under way.
class Probe {
 public:
  Probe(const ProbeOptions& options, const ScratchFile& scratch, double seconds)
      : options_(options), scratch_(scratch), seconds_(seconds), memory_(options.memory) {
    report_.path = options.path;
    report_.file_system = file_system_of(options.path);
    report_.device = device_of(options.path);
    report_.free_space = free_space_of(options.path);
    report_.points = points_for(options.quick);
  }

  ProbeReport run() {
    fill();
    leave_out();
    const auto measured =
        std::count_if(report_.points.begin(), report_.points.end(),
                      [](const ProbePoint& point) { return point.left_out.empty(); });
    steps_left_ = static_cast<int>(measured) * kKinds;
    steps_ = steps_left_;
    for (ProbePoint& point : report_.points) {
      if (point.left_out.empty()) {
        measure(point);
      }
    }
    report_.best = best_point(report_.points);
    report_.seconds = seconds_since(begin_);
    if (options_.progress) {
      options_.progress({.done = 1, .doing = "done"});
    }
    return std::move(report_);
  }

 private:
  std::unique_ptr<IoEngine> make_engine(Bytes block_size, int depth) const {
    IoEngineOptions options;
    options.backend = options_.backend;
    options.block_size = block_size;
    options.queue_depth = depth;
    return IoEngine::create(options);
  }

  void tell(const std::string& doing) {
    if (options_.progress) {
      const double filled = steps_ == 0 ? 0 : kFillShare;
      const double done = steps_ == 0 ? 0 : 1.0 - static_cast<double>(steps_left_) / steps_;
      options_.progress({.done = filled + (1 - filled) * done, .doing = doing});
    }
  }

  /// Writes every block, so that no later read meets one that was never written. Storage that is
  /// too slow for the whole file gets a smaller one.
  void fill() {
    tell("writing the test file");
    const auto slots = static_cast<int>(std::min(kFillDepth, options_.memory / kFillBlock));
    const auto engine = make_engine(kFillBlock, slots);
    engine->register_memory({memory_.data(), static_cast<size_t>((kFillBlock * slots).count())});
    const FileId file = engine->open(scratch_.path(), false);
    engine->allocate(file, options_.file_size);
    const LoadResult written = run_load(*engine, {.kind = LoadKind::write,
                                                  .file = file,
                                                  .file_size = options_.file_size,
                                                  .block_size = kFillBlock,
                                                  .slots = slots,
                                                  .memory = memory_.data(),
                                                  .seconds = kFillShare * seconds_,
                                                  .one_pass = true,
                                                  .cancelled = options_.cancelled});
    report_.file_size = kFillBlock * written.blocks_sent;
    fill_rate_ = written.rate();
    if (report_.file_size < options_.file_size) {
      engine->allocate(file, report_.file_size);
    }
    engine->sync(file);
    report_.engine = engine->description();
    report_.is_direct = report_.engine.find("O_DIRECT") != std::string::npos;
  }

  /// Settings that would cost more memory or time than there is.
  void leave_out() {
    const auto steps = static_cast<double>(report_.points.size() * kKinds);
    const double load_seconds =
        (seconds_ - seconds_since(begin_)) / steps * kLoadShare * (1 - kWarmShare);
    for (ProbePoint& point : report_.points) {
      if (in_flight_of(point) > options_.memory) {
        point.left_out =
            fmt::format("{} in flight, {} of memory allowed", format_bytes(in_flight_of(point)),
                        format_bytes(options_.memory));
      } else if (report_.file_size < point.block_size * 2) {
        point.left_out = "the test file is too small, the storage too slow to write more";
      } else if (static_cast<double>(in_flight_of(point).count()) > fill_rate_ * load_seconds) {
        point.left_out =
            fmt::format("{} in flight take longer than the {} of one measurement",
                        format_bytes(in_flight_of(point)), format_duration(load_seconds));
      }
    }
  }

  void measure(ProbePoint& point) {
    const auto engine = make_engine(point.block_size, point.queue_depth);
    engine->register_memory({memory_.data(), static_cast<size_t>(in_flight_of(point).count())});
    const FileId file = engine->open(scratch_.path(), false);
    for (const LoadKind kind : {LoadKind::read, LoadKind::write, LoadKind::mixed}) {
      const double seconds = (seconds_ - seconds_since(begin_)) / steps_left_ * kLoadShare;
      if (point.left_out.empty()) {
        point.left_out = seconds > 0 ? measure(*engine, file, kind, seconds, point)
                                     : std::string("no time was left");
      }
      --steps_left_;
    }
    point.is_measured = point.left_out.empty();
  }

  /// Empty, or why the point is not measured.
  std::string measure(IoEngine& engine, FileId file, LoadKind kind, double seconds,
                      ProbePoint& point) {
    const char* const name = kind == LoadKind::read    ? "read"
                             : kind == LoadKind::write ? "write"
                                                       : "read and write";
    tell(fmt::format("{} x {}: {}", format_bytes(point.block_size), point.queue_depth, name));
    const LoadResult result = run_load(engine, {.kind = kind,
                                                .file = file,
                                                .file_size = report_.file_size,
                                                .block_size = point.block_size,
                                                .slots = point.queue_depth,
                                                .memory = memory_.data(),
                                                .seconds = seconds,
                                                .warm_seconds = kWarmShare * seconds,
                                                .cancelled = options_.cancelled});
    if (result.read_ms.size() + result.write_ms.size() < kTransfersMin) {
      return fmt::format("fewer than {} transfers ended in {}", kTransfersMin,
                         format_duration(result.seconds));
    }
    if (kind == LoadKind::read) {
      point.read_rate = result.rate();
      point.read_latency = latency_of(result.read_ms);
    } else if (kind == LoadKind::write) {
      point.write_rate = result.rate();
      point.write_latency = latency_of(result.write_ms);
    } else {
      point.mixed_rate = result.rate();
    }
    return "";
  }

  const ProbeOptions& options_;
  const ScratchFile& scratch_;
  const double seconds_;
  const Clock::time_point begin_ = Clock::now();
  HugeMemory memory_;
  ProbeReport report_;
  double fill_rate_ = 0;  ///< bytes per second of the first write
  int steps_ = 0;
  int steps_left_ = 0;
};

void check(const ProbeOptions& options) {
  if (options.file_size < kFillBlock * 2 || options.file_size.count() % kFillBlock.count() != 0) {
    throw InputError(fmt::format(
        "the size of the probe file is {}: use a multiple of {}, at least {}",
        format_bytes(options.file_size), format_bytes(kFillBlock), format_bytes(kFillBlock * 2)));
  }
  if (options.memory < kFillBlock * 4) {
    throw InputError(fmt::format("the memory of the probe is {}: use at least {}",
                                 format_bytes(options.memory), format_bytes(kFillBlock * 4)));
  }
  if (options.seconds < 0) {
    throw InputError(
        fmt::format("the time of the probe is {} s: use a positive one", options.seconds));
  }
  const Bytes needed = options.file_size + kFreeMargin;
  if (const Bytes free = free_space_of(options.path); free < needed) {
    throw CapacityError(
        fmt::format("the probe needs {} in {}, only {} are free: free some, or choose a "
                    "smaller file",
                    format_bytes(needed), options.path, format_bytes(free)));
  }
}

double score(const ProbePoint& point) {
  return point.mixed_rate + (point.read_rate + point.write_rate) / 2;
}

}  // namespace

size_t best_point(const std::vector<ProbePoint>& points) {
  double highest = -1;
  for (const ProbePoint& point : points) {
    highest = point.is_measured ? std::max(highest, score(point)) : highest;
  }
  if (highest < 0) {
    throw CapacityError("the probe measured nothing: give it more time or memory");
  }
  size_t best = points.size();
  for (size_t i = 0; i < points.size(); ++i) {
    if (!points[i].is_measured || score(points[i]) < (1 - kTolerance) * highest) {
      continue;
    }
    if (best == points.size() || in_flight_of(points[i]) < in_flight_of(points[best])) {
      best = i;
    }
  }
  return best;
}

ProbeReport probe(const ProbeOptions& options) {
  check(options);
  const double standard = options.quick ? 8 : 30;
  const ScratchFile scratch(options.path);
  try {
    return Probe(options, scratch, options.seconds > 0 ? options.seconds : standard).run();
  } catch (const IoError& error) {
    IoError::Where where = error.where();
    if (where.path != scratch.path()) {
      throw;
    }
    where.path = scratch.name();  // what the user knows, instead of a descriptor
    throw IoError("the probe failed", where);
  }
}

}  // namespace headrace::aio
