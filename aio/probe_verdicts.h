#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"

// What measured rates say about storage. Pure functions; all rates are bytes per second.

namespace headrace::aio {

/// Mean rates over intervals of equal length, one after the other.
struct RateSeries {
  double interval_seconds = 0.25;
  std::vector<double> rates;
};

enum class CacheKind : uint8_t {
  none,                ///< transfers reach the storage, as far as rates can tell
  memory_file_system,  ///< tmpfs, ramfs: files are memory
  buffered,            ///< O_DIRECT is refused: all goes through the page cache
  page_cache,          ///< O_DIRECT is accepted, but its pages are in the page cache
  memory_rate,         ///< reads as fast as memory copies
  fast_reread,         ///< the second read of a range is far faster than the first
};

struct CacheFinding {
  CacheKind kind = CacheKind::none;
  double first_read_rate = 0;
  double reread_rate = 0;
  double memory_rate = 0;   ///< of a copy with all threads
  double cached_share = 0;  ///< of the file in the page cache after transfers with O_DIRECT
};

/// Whether rates measured are those of a cache; `best_read_rate` is of the chosen setting.
CacheKind judge_cache(const CacheFinding& facts, const std::string& file_system, bool is_direct,
                      double best_read_rate);

/// Space that was allocated but never written.
struct ThinFinding {
  bool is_judged = false;            ///< false: a rate is missing
  bool unwritten_read_fast = false;  ///< reads of it do not reach the storage
  bool first_write_slow = false;     ///< the first write costs more than a later one
  double unwritten_read_rate = 0;
  double written_read_rate = 0;
  double first_write_rate = 0;
  double rewrite_rate = 0;
};

/// Fills in the verdicts from the rates.
ThinFinding judge_thin(ThinFinding rates);

/// Burst against sustained writes.
struct CliffFinding {
  bool is_judged = false;  ///< false: fewer than kCliffIntervalsMin intervals
  bool has_cliff = false;
  double burst_rate = 0;      ///< median before the cliff; without one: of all
  double sustained_rate = 0;  ///< median after it; without one: of all
  Bytes at;                   ///< written before the rate fell
  Bytes written;              ///< in all
};

inline constexpr size_t kCliffIntervalsMin = 8;

/// Splits the series in two where that explains it best (least squares). A cliff: the second part
/// has at most 0.6 of the first part's rate, and nearly all intervals lie on their part's side of
/// the middle, so that single dips are none.
CliffFinding find_cliff(const RateSeries& series);

enum class Duplex : uint8_t { unknown, half, partial, full };

/// mixed / max(read, write): 1 where reads and writes share one limit, 2 where each has its own; 0
/// when a rate is missing.
double duplex_ratio(double read_rate, double write_rate, double mixed_rate);
/// half below 1.25, full from 1.6 on.
Duplex judge_duplex(double ratio);

/// One sentence each, for people.
std::string describe(const CacheFinding& finding);
std::string describe(const ThinFinding& finding);
std::string describe(const CliffFinding& finding);
std::string describe_duplex(double ratio);
/// "2.41 GB/s", decimal.
std::string format_rate(double bytes_per_second);

}  // namespace headrace::aio
