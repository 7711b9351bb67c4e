#pragma once

#include <string>
#include <vector>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// A trace compiled once. What was resident at first is `schedule.initial`.
struct SavedRound {
  int64_t number = 1;  ///< 1: the first step after the weights were loaded
  Schedule schedule;
  double predicted_seconds = 0;  ///< simulated when it was saved

  bool operator==(const SavedRound&) const = default;
};

/// A trace with all that compile() was given and made of it, as it is kept in a file. A value.
struct SavedTrace {
  std::string description;  ///< of model and settings, for people
  std::string step;         ///< which trace of the memory plan: "training", "evaluation", ...
  std::string policy;
  Trace trace;
  std::vector<ObjectFacts> objects;
  Budgets budgets;
  Rates rates;
  std::vector<SavedRound> rounds;  ///< by number; never empty

  /// The last round, which is the steady state if there are several.
  const SavedRound& last() const { return rounds.back(); }
  /// What the round was compiled from; refers to this trace.
  CompileInput input(const SavedRound& round) const;

  bool operator==(const SavedTrace&) const = default;
};

/// Longest file that is read, and written.
inline constexpr Bytes kLongestTraceFile = kGiB;

/// The bytes of a trace file; docs/formats.md, "Saved traces". InputError if they would be more
/// than kLongestTraceFile.
std::string encode_trace(const SavedTrace& trace);

/// The reverse. InputError naming `source` when the bytes are no trace file, are of a newer format,
/// truncated or damaged, or when what they say is inconsistent. Every index in the result is inside
/// its table, so that it can be simulated; whether a schedule is sound says check_schedule().
SavedTrace decode_trace(const std::string& bytes, const std::string& source);

}  // namespace headrace::scheduler
