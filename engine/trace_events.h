#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <set>
#include <string>

#include "base/units.h"
#include "engine/timeline.h"

namespace headrace::engine {

/// What a timeline is of.
struct TimelineTitle {
  struct Memory {
    Bytes budget;
    Bytes fixed;  ///< taken for good beside the slots of objects
  };
  std::string name;              ///< of the run
  std::optional<Memory> device;  ///< empty: no device tier
  Memory host;
};

/// Steps in the trace event format (JSON), which ui.perfetto.dev and chrome://tracing open:
/// tracks for the step, for what its time is charged to and for each lane, and counters. A lane
/// with several transfers in flight has as many tracks, so that events of a track never overlap.
/// docs/formats.md says what the events are. Times are microseconds from the first step's begin.
class TraceEventText {
 public:
  explicit TraceEventText(TimelineTitle title);

  std::string head() const;
  /// Events of one step, separated by ",\n".
  std::string step(const StepTimeline& timeline);
  static std::string tail();

 private:
  void add(const std::string& event);
  void name_track(int track, const std::string& name);
  void add_span(int track, const std::string& name, std::string_view category, double begin,
                double end, const std::string& arguments);
  void add_counter(const std::string& name, double time, const std::string& values);
  void add_lanes(const StepTimeline& timeline);
  void add_memory(const StepTimeline& timeline);
  void add_in_flight(const StepTimeline& timeline);

  TimelineTitle title_;
  std::optional<std::chrono::steady_clock::time_point> origin_;
  double offset_ = 0;  // seconds from the origin to the step
  std::set<int> named_tracks_;
  std::string events_;
};

/// A file of steps that is whole after each of them. Throws IoError.
class TraceEventFile {
 public:
  TraceEventFile(std::string path, const TimelineTitle& title);
  void write(const StepTimeline& timeline);

 private:
  void put(const std::string& text);

  std::string path_;
  TraceEventText text_;
  std::ofstream file_;
  std::streampos end_of_events_;
};

/// A file of one step, replaced as a whole.
void write_timeline_file(const std::string& path, const TimelineTitle& title,
                         const StepTimeline& timeline);

}  // namespace headrace::engine
