#include "aio/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "aio/probe_session.h"
#include "base/error.h"

namespace headrace::aio {

namespace {

// Shares of the time that have passed when a phase ends.
constexpr double kUnwrittenEnd = 0.02;
constexpr double kFillEnd = 0.17;
constexpr double kSustainedEnd = 0.35;
constexpr double kFirstReadEnd = 0.37;
constexpr double kRereadEnd = 0.39;
constexpr double kSweepEnd = 0.64;
constexpr double kFinalsEnd = 0.88;
constexpr double kModesEnd = 1.0;

constexpr double kCopyShare = 0.02;    ///< for the rate of memory copies, before the phases
constexpr double kLoadMin = 0.01;      ///< of the time, for a load before the sweep
constexpr double kLoadShare = 0.9;     ///< of a load's time; the rest is for its set-up
constexpr double kLeastSeconds = 0.1;  ///< of the load with the fewest bytes in flight
constexpr double kWarmShare = 0.25;    ///< of a load, not counted
constexpr double kDrainShare =
    0.7;                            ///< of a load's time, at most, for what is in flight at its end
constexpr double kModeGain = 1.05;  ///< polling must be better by this: it costs a core
constexpr double kSampleSeconds = 0.25;
constexpr Bytes kFillBlock{4 << 20};
constexpr int64_t kFillDepth = 32;
constexpr size_t kTransfersMin = 8;  ///< fewer in a load say nothing about its rate
constexpr Bytes kFreeMargin{64 << 20};
constexpr Bytes kReadRange{512 << 20};  ///< of the reads that look for caches and thin space
constexpr auto kKinds = std::to_array({LoadKind::read, LoadKind::write, LoadKind::mixed});

int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

/// One probe under way.
class Probe {
 public:
  explicit Probe(ProbeSession& session) : session_(session) {
    const ProbeOptions& options = session.options();
    report_.path = options.path;
    report_.unix_seconds = unix_seconds();
    report_.storage = identify_storage(options.path);
    report_.points = points_for(options.quick);
  }

  ProbeReport run() {
    session_.tell("memory");
    session_.memory().fill_random();
    report_.cache.memory_rate = session_.memory().copy_rate(kCopyShare * session_.seconds());
    session_.start_phases();
    write_file();
    sweep();
    play_finals();
    try_modes();
    judge();
    report_.seconds = session_.elapsed();
    if (session_.options().compare_fio) {
      compare();
    }
    if (session_.options().progress) {
      session_.options().progress({.done = 1, .doing = "done"});
    }
    return std::move(report_);
  }

 private:
  /// Allocates the file, reads space that was never written, writes every block and goes on
  /// writing, reads a range twice. Storage that is too slow for the whole file gets a smaller one.
  void write_file() {
    const ProbeOptions& options = session_.options();
    const auto slots = static_cast<int>(std::min(kFillDepth, options.memory / kFillBlock));
    const ProbeSession::Opened opened = session_.open(kFillBlock, slots);
    IoEngine& engine = *opened.engine;
    engine.allocate(opened.file, options.file_size);
    note_engine(engine);
    Bytes range = std::min(options.file_size, kReadRange);
    const auto run = [&](const char* doing, LoadKind kind, Bytes size, double end, bool one_pass) {
      session_.tell(doing);
      const double seconds =
          std::max(session_.until(end) * kLoadShare, kLoadMin * session_.seconds());
      LoadPlan plan = session_.plan(opened, kind, size, kFillBlock, slots, seconds);
      plan.one_pass = one_pass;
      plan.sample_seconds = kind == LoadKind::write ? kSampleSeconds : 0;
      return run_load(engine, plan);
    };
    report_.thin.unwritten_read_rate =
        run("reading space never written", LoadKind::read, range, kUnwrittenEnd, true).rate();
    const LoadResult fill =
        run("writing the test file", LoadKind::write, options.file_size, kFillEnd, true);
    take_fill(fill, engine, opened.file);
    const LoadResult sustained =
        run("writing on", LoadKind::write, report_.file_size, kSustainedEnd, false);
    report_.thin.rewrite_rate = sustained.rate();
    highest_write_rate_ = std::max(report_.thin.first_write_rate, report_.thin.rewrite_rate);
    report_.writes.rates.insert(report_.writes.rates.end(), sustained.samples.rates.begin(),
                                sustained.samples.rates.end());
    engine.sync(opened.file);
    if (!report_.is_direct) {
      session_.scratch().drop_cache();
    }
    range = std::min(range, report_.file_size);
    report_.cache.first_read_rate =
        run("first read", LoadKind::read, range, kFirstReadEnd, true).rate();
    report_.cache.reread_rate = run("second read", LoadKind::read, range, kRereadEnd, true).rate();
    report_.thin.written_read_rate = report_.cache.first_read_rate;
    report_.cache.cached_share = report_.is_direct ? session_.scratch().cached_share(range) : 0;
  }

  void note_engine(const IoEngine& engine) {
    report_.engine = engine.description();
    const std::string& file_system = report_.storage.file_system;
    report_.is_direct = report_.engine.find("O_DIRECT") != std::string::npos &&
                        file_system != "tmpfs" && file_system != "ramfs";
  }

  void take_fill(const LoadResult& fill, IoEngine& engine, FileId file) {
    report_.file_size = kFillBlock * fill.blocks_sent;
    if (fill.blocks_sent < 2) {
      throw CapacityError(
          fmt::format("the storage at {} is too slow for this probe: give it more "
                      "time than {}",
                      report_.path, format_duration(session_.seconds())));
    }
    if (report_.file_size < session_.options().file_size) {
      engine.allocate(file, report_.file_size);
    }
    report_.thin.first_write_rate = fill.rate();
    report_.writes = fill.samples;
  }

  void sweep() {
    for (ProbePoint& point : report_.points) {
      if (point.in_flight() > session_.options().memory) {
        point.left_out =
            fmt::format("{} in flight, {} of memory allowed", format_bytes(point.in_flight()),
                        format_bytes(session_.options().memory));
      } else if (report_.file_size < point.block_size * 2) {
        point.left_out = "the test file is too small, the storage too slow to write more";
      }
    }
    const auto count =
        std::count_if(report_.points.begin(), report_.points.end(),
                      [](const ProbePoint& point) { return point.left_out.empty(); });
    loads_left_ = count * static_cast<int64_t>(kKinds.size());
    least_in_flight_ =
        std::min_element(report_.points.begin(), report_.points.end(),
                         [](const auto& a, const auto& b) { return a.in_flight() < b.in_flight(); })
            ->in_flight();
    for (ProbePoint& point : report_.points) {
      if (point.left_out.empty()) {
        PointSamples samples;
        point.left_out = play_round(point, kSweepEnd, samples);
        point.is_measured = point.left_out.empty();
        samples.summarize(point);
      }
    }
  }

  /// The best points again, by turns, for rates move from run to run; one of them is chosen. The
  /// sweep's rates count no more: the highest of many single ones is one that had luck.
  void play_finals() {
    const bool quick = session_.options().quick;
    const std::vector<size_t> chosen = finalists(report_.points, quick ? 2 : 3);
    const int rounds = quick ? 2 : 4;
    loads_left_ = static_cast<int64_t>(chosen.size() * kKinds.size()) * rounds;
    std::vector<PointSamples> samples(report_.points.size());
    for (int round = 0; round < rounds; ++round) {
      for (const size_t i : chosen) {
        // A load that is too short for what is in flight adds nothing.
        static_cast<void>(play_round(report_.points[i], kFinalsEnd, samples[i]));
      }
    }
    for (const size_t i : chosen) {
      if (!samples[i].scores().empty()) {
        samples[i].summarize(report_.points[i]);
      }
    }
    report_.best = best_of(report_.points, samples, chosen);
  }

  /// Reads, writes, does both, with a share of the time until `end` each. Empty, or why not.
  std::string play_round(const ProbePoint& point, double end, PointSamples& samples) {
    const ProbeSession::Opened opened = session_.open(point.block_size, point.queue_depth);
    return play_round(opened, point, end, samples);
  }

  std::string play_round(const ProbeSession::Opened& opened, const ProbePoint& point, double end,
                         PointSamples& samples) {
    std::string left_out;
    for (const LoadKind kind : kKinds) {
      const double slot = session_.until(end) / static_cast<double>(loads_left_--) * kLoadShare;
      if (left_out.empty()) {
        left_out = measure(opened, point, kind, slot, samples);
      }
    }
    return left_out;
  }

  std::string measure(const ProbeSession::Opened& opened, const ProbePoint& point, LoadKind kind,
                      double slot, PointSamples& samples) {
    const double drain = static_cast<double>(point.in_flight().count()) / highest_write_rate_;
    const bool is_least = point.in_flight() == least_in_flight_;
    if (drain > kDrainShare * slot && !is_least) {
      return fmt::format("{} in flight take longer than the {} of one measurement",
                         format_bytes(point.in_flight()), format_duration(slot));
    }
    session_.tell(fmt::format("{} x {}: {}", format_bytes(point.block_size), point.queue_depth,
                              to_string(kind)));
    // The smallest amount in flight is measured however little time there is.
    const double seconds = std::max(slot - drain, is_least ? std::max(drain, kLeastSeconds) : 0.0);
    LoadPlan plan = session_.plan(opened, kind, report_.file_size, point.block_size,
                                  point.queue_depth, seconds);
    plan.warm_seconds = kWarmShare * seconds;
    const LoadResult result = run_load(*opened.engine, plan);
    if (result.read_ms.size() + result.write_ms.size() < kTransfersMin) {
      return fmt::format("fewer than {} transfers ended in {}", kTransfersMin,
                         format_duration(result.seconds));
    }
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    if (kind == LoadKind::read) {
      samples.read_rates.push_back(result.rate());
      append(samples.read_ms, result.read_ms);
    } else if (kind == LoadKind::write) {
      samples.write_rates.push_back(result.rate());
      append(samples.write_ms, result.write_ms);
    } else {
      samples.mixed_rates.push_back(result.rate());
    }
    return "";
  }

  void try_modes() {
    constexpr auto kModes = std::to_array(
        {SubmissionMode::interrupt, SubmissionMode::sq_poll, SubmissionMode::io_poll});
    loads_left_ = static_cast<int64_t>(kModes.size() * kKinds.size());
    const int64_t last = loads_left_;
    for (size_t i = 0; i < kModes.size(); ++i) {
      loads_left_ = last - static_cast<int64_t>(i * kKinds.size());
      report_.modes.push_back(try_mode(kModes[i]));
    }
    const double interrupt = score(report_.modes.front().rates);
    double highest = interrupt * kModeGain;
    for (const ModeTrial& trial : report_.modes) {
      if (trial.left_out.empty() && score(trial.rates) > highest) {
        highest = score(trial.rates);
        report_.best_mode = trial.mode;
      }
    }
  }

  ModeTrial try_mode(SubmissionMode mode) {
    const ProbePoint& point = report_.points[report_.best];
    ModeTrial trial{.mode = mode, .rates = {}, .left_out = {}};
    try {
      const ProbeSession::Opened opened = session_.open(point.block_size, point.queue_depth, mode);
      const auto check = [&] {
        trial.left_out = refusal_of(mode, opened.engine->description());
        trial.is_refused = !trial.left_out.empty();
        return !trial.is_refused;
      };
      if (check()) {
        PointSamples samples;
        ProbePoint measured = point;
        const std::string too_short = play_round(opened, point, kModesEnd, samples);
        samples.summarize(measured);
        trial.rates = measured.rates;
        // A device may refuse polling at the first transfer.
        trial.left_out = check() ? too_short : trial.left_out;
      }
    } catch (const IoError& error) {
      trial.left_out = error.what();
      trial.is_refused = true;
    }
    return trial;
  }

  static std::string refusal_of(SubmissionMode mode, const std::string& description) {
    if (mode == SubmissionMode::interrupt ||
        description.find(to_string(mode)) != std::string::npos) {
      return "";
    }
    const char* const reason =
        mode == SubmissionMode::sq_poll
            ? "the kernel or the rights of this user do not allow a polling kernel thread"
            : "the device has no poll queues, or the file system or the kernel cannot poll";
    return fmt::format("{}; in use instead: {}", reason, description);
  }

  void judge() {
    const Rates& best = report_.points[report_.best].rates;
    report_.cache.kind =
        judge_cache(report_.cache, report_.storage.file_system, report_.is_direct, best.read);
    report_.thin = judge_thin(report_.thin);
    report_.cliff = find_cliff(report_.writes);
    report_.duplex = duplex_ratio(best.read, best.write, best.mixed);
  }

  void compare() {
    session_.tell("comparing with fio");
    const ProbePoint& point = report_.points[report_.best];
    constexpr int kRounds = 2;
    constexpr double kRunShare = 0.6;  // of a run; the rest is for its start
    const double seconds = fio_seconds(session_.options().quick) /
                           (2.0 * kRounds * static_cast<double>(kKinds.size())) * kRunShare;
    const bool registered = report_.engine.find("registered") != std::string::npos;
    const ProbeSession::Opened opened = session_.open(point.block_size, point.queue_depth);
    const auto ours = [&](LoadKind kind) {
      session_.tell(fmt::format("comparing with fio: {}", to_string(kind)));
      LoadPlan plan = session_.plan(opened, kind, report_.file_size, point.block_size,
                                    point.queue_depth, seconds * (1 + kWarmShare));
      plan.warm_seconds = kWarmShare * seconds;
      return run_load(*opened.engine, plan).rate();
    };
    const auto theirs = [&](LoadKind kind) {
      return run_fio({.kind = kind,
                      .path = session_.scratch().path_for_others(),
                      .file_size = report_.file_size,
                      .block_size = point.block_size,
                      .queue_depth = point.queue_depth,
                      .seconds = seconds,
                      .direct = report_.is_direct,
                      .registered = registered},
                     session_.options().cancelled);
    };
    report_.fio = compare_with_fio(ours, theirs, kRounds);
  }

  ProbeSession& session_;
  ProbeReport report_;
  double highest_write_rate_ = 0;  ///< bytes per second, of the phases before the sweep
  Bytes least_in_flight_;          ///< of the points
  int64_t loads_left_ = 0;         ///< of the phase
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

}  // namespace

ProbeReport probe(const ProbeOptions& options) {
  check(options);
  ProbeSession session(options);
  try {
    return Probe(session).run();
  } catch (const IoError& error) {
    IoError::Where where = error.where();
    if (where.path != session.scratch().path()) {
      throw;
    }
    where.path = session.scratch().name();  // what the user knows, instead of a descriptor
    throw IoError("the probe failed", where);
  }
}

}  // namespace headrace::aio
