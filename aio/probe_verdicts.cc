#include "aio/probe_verdicts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/median.h"

namespace headrace::aio {

namespace {

constexpr double kCachedShare = 0.05;     ///< more of the file in the page cache: it is used
constexpr double kMemoryShare = 0.8;      ///< of a memory copy's rate: no storage is so fast
constexpr double kRereadRatio = 1.8;      ///< runs of one setting differ by less
constexpr double kThinRatio = 1.6;        ///< likewise
constexpr double kCliffRatio = 0.6;       ///< sustained / burst
constexpr double kCliffAgreement = 0.85;  ///< share of the intervals on their side of the middle
constexpr size_t kCliffPartMin = 3;       ///< intervals on each side

/// Sum of squared distances from the mean, from sums.
double spread(double sum, double squares, double count) {
  return squares - sum * sum / count;
}

/// Index that the second part begins at.
size_t best_split(const std::vector<double>& rates) {
  const double total = std::accumulate(rates.begin(), rates.end(), 0.0);
  const double total_squares = std::inner_product(rates.begin(), rates.end(), rates.begin(), 0.0);
  double sum = 0;
  double squares = 0;
  double least = std::numeric_limits<double>::infinity();
  size_t best = kCliffPartMin;
  for (size_t i = 1; i + kCliffPartMin <= rates.size(); ++i) {
    sum += rates[i - 1];
    squares += rates[i - 1] * rates[i - 1];
    if (i < kCliffPartMin) {
      continue;
    }
    const auto before = static_cast<double>(i);
    const auto after = static_cast<double>(rates.size() - i);
    const double error =
        spread(sum, squares, before) + spread(total - sum, total_squares - squares, after);
    if (error < least) {
      least = error;
      best = i;
    }
  }
  return best;
}

Bytes bytes_of(const RateSeries& series, size_t intervals) {
  const double sum = std::accumulate(
      series.rates.begin(), series.rates.begin() + static_cast<std::ptrdiff_t>(intervals), 0.0);
  return Bytes(std::llround(sum * series.interval_seconds));
}

}  // namespace

CacheKind judge_cache(const CacheFinding& facts, const std::string& file_system, bool is_direct,
                      double best_read_rate) {
  if (file_system == "tmpfs" || file_system == "ramfs") {
    return CacheKind::memory_file_system;
  }
  if (!is_direct) {
    return CacheKind::buffered;
  }
  if (facts.cached_share > kCachedShare) {
    return CacheKind::page_cache;
  }
  if (facts.memory_rate > 0 && best_read_rate > kMemoryShare * facts.memory_rate) {
    return CacheKind::memory_rate;
  }
  if (facts.first_read_rate > 0 && facts.reread_rate > kRereadRatio * facts.first_read_rate) {
    return CacheKind::fast_reread;
  }
  return CacheKind::none;
}

ThinFinding judge_thin(ThinFinding rates) {
  rates.is_judged = rates.unwritten_read_rate > 0 && rates.written_read_rate > 0 &&
                    rates.first_write_rate > 0 && rates.rewrite_rate > 0;
  rates.unwritten_read_fast =
      rates.is_judged && rates.unwritten_read_rate > kThinRatio * rates.written_read_rate;
  rates.first_write_slow =
      rates.is_judged && rates.rewrite_rate > kThinRatio * rates.first_write_rate;
  return rates;
}

CliffFinding find_cliff(const RateSeries& series) {
  const std::vector<double>& rates = series.rates;
  CliffFinding finding;
  finding.written = bytes_of(series, rates.size());
  finding.burst_rate = finding.sustained_rate = median(rates);
  finding.is_judged = rates.size() >= kCliffIntervalsMin;
  if (!finding.is_judged) {
    return finding;
  }
  const size_t split = best_split(rates);
  const auto border = rates.begin() + static_cast<std::ptrdiff_t>(split);
  const double burst = median({rates.begin(), border});
  const double sustained = median({border, rates.end()});
  const double middle = (burst + sustained) / 2;
  const auto agreeing =
      std::count_if(rates.begin(), border, [&](double rate) { return rate > middle; }) +
      std::count_if(border, rates.end(), [&](double rate) { return rate < middle; });
  finding.has_cliff =
      sustained <= kCliffRatio * burst &&
      static_cast<double>(agreeing) >= kCliffAgreement * static_cast<double>(rates.size());
  if (finding.has_cliff) {
    finding.burst_rate = burst;
    finding.sustained_rate = sustained;
    finding.at = bytes_of(series, split);
  }
  return finding;
}

double duplex_ratio(double read_rate, double write_rate, double mixed_rate) {
  const double higher = std::max(read_rate, write_rate);
  return read_rate > 0 && write_rate > 0 ? mixed_rate / higher : 0;
}

Duplex judge_duplex(double ratio) {
  if (ratio <= 0) {
    return Duplex::unknown;
  }
  return ratio < 1.25 ? Duplex::half : ratio < 1.6 ? Duplex::partial : Duplex::full;
}

std::string format_rate(double bytes_per_second) {
  const double giga = bytes_per_second / 1e9;
  return giga < 0.1 ? fmt::format("{:.1f} MB/s", giga * 1e3) : fmt::format("{:.2f} GB/s", giga);
}

std::string describe(const CacheFinding& finding) {
  switch (finding.kind) {
    case CacheKind::none:
      return fmt::format("none seen (re-read {}, first read {}; memory copies {})",
                         format_rate(finding.reread_rate), format_rate(finding.first_read_rate),
                         format_rate(finding.memory_rate));
    case CacheKind::memory_file_system:
      return "no O_DIRECT: the file system keeps its files in memory; these are rates of memory, "
             "not of storage";
    case CacheKind::buffered:
      return "no O_DIRECT: refused here; the rates include the page cache";
    case CacheKind::page_cache:
      return fmt::format(
          "O_DIRECT is accepted but not done: {:.0f} % of the file is in the page cache; the rates "
          "include it",
          100 * finding.cached_share);
    case CacheKind::memory_rate:
      return fmt::format("likely: reads are nearly as fast as memory copies ({})",
                         format_rate(finding.memory_rate));
    case CacheKind::fast_reread:
      return fmt::format(
          "likely, below the operating system: the second read of a range ran at {}, the first one "
          "at {}",
          format_rate(finding.reread_rate), format_rate(finding.first_read_rate));
  }
  return "";
}

std::string describe(const ThinFinding& finding) {
  if (!finding.is_judged) {
    return "not judged: a rate is missing";
  }
  std::string text =
      finding.first_write_slow
          ? fmt::format("the first write into allocated space is slow: {}, later ones {}",
                        format_rate(finding.first_write_rate), format_rate(finding.rewrite_rate))
          : fmt::format("the first write costs no more than later ones ({}, {})",
                        format_rate(finding.first_write_rate), format_rate(finding.rewrite_rate));
  text +=
      finding.unwritten_read_fast
          ? fmt::format(
                "; reads of never-written space do not reach the storage ({}, written "
                "{})",
                format_rate(finding.unwritten_read_rate), format_rate(finding.written_read_rate))
          : fmt::format("; never-written space reads like written ({}, {})",
                        format_rate(finding.unwritten_read_rate),
                        format_rate(finding.written_read_rate));
  return text;
}

std::string describe(const CliffFinding& finding) {
  if (!finding.is_judged) {
    return fmt::format("not judged: the writes were too short ({})", format_bytes(finding.written));
  }
  if (finding.has_cliff) {
    return fmt::format("write cache cliff after {}: {} before, {} after", format_bytes(finding.at),
                       format_rate(finding.burst_rate), format_rate(finding.sustained_rate));
  }
  return fmt::format("no cliff: none seen in {} ({})", format_bytes(finding.written),
                     format_rate(finding.sustained_rate));
}

std::string describe_duplex(double ratio) {
  switch (judge_duplex(ratio)) {
    case Duplex::unknown:
      return "unknown: a rate is missing";
    case Duplex::half:
      return fmt::format(
          "half duplex: mixed / max(read, write) = {:.2f}; reads and writes share "
          "one limit",
          ratio);
    case Duplex::partial:
      return fmt::format("partly duplex: mixed / max(read, write) = {:.2f}", ratio);
    case Duplex::full:
      return fmt::format(
          "full duplex: mixed / max(read, write) = {:.2f}; reads and writes do not "
          "slow each other down",
          ratio);
  }
  return "";
}

}  // namespace headrace::aio
