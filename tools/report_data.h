#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace headrace::tools {

/// Steps that a page has points for, at most; above it each point is the mean of several.
inline constexpr int64_t kMostPoints = 2000;

/// What the report page draws, from the output folder of `headrace train`:
///   run            the folder as it was named
///   report         report.json as it is; null where there is none
///   steps          columns of metrics.jsonl by name ("loss", "bytes.nvme_read",
///                  "seconds_by_cause.compute", ...), with null for what is not known, and `last`,
///                  `grouped` (steps per point), `skipped` and `without_time` (counts of steps)
///   evaluations    [step, validation loss]
///   timeline       of timeline.json; null where there is none: step, seconds, charges [{cause,
///                  begin, end}], lanes [{lane, tracks, events [{track, name, begin, end,
///                  bytes}]}], memory [{tier, budget, levels [[time, bytes]]}], in_flight [[time,
///                  reads, writes]]; times in seconds from the step's begin
/// A half-written last line of a run in progress is left out. Throws InputError that says what is
/// wrong with the folder, or with which line of which file.
nlohmann::ordered_json read_report_data(const std::string& folder,
                                        int64_t most_points = kMostPoints);

/// The `timeline` of read_report_data() from the text of a trace event file; `path` is for
/// messages.
nlohmann::ordered_json parse_timeline(const std::string& text, const std::string& path);

}  // namespace headrace::tools
