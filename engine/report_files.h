#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "engine/timeline.h"
#include "engine/trace_events.h"
#include "engine/trainer.h"

namespace headrace::engine {

inline constexpr const char* kReportFile = "report.json";
inline constexpr const char* kTimelineFile = "timeline.json";
inline constexpr int kReportFormat = 1;

/// What `headrace report` reads beside metrics.jsonl, in the output folder: report.json (what was
/// planned and set) and timeline.json (one step); and the file that --timeline asks for. Formats:
/// docs/formats.md. A report is not worth the training: a write that fails is a warning.
class ReportFiles {
 public:
  /// What does not change during the run.
  struct Facts {
    const model::ModelConfig* model = nullptr;
    const EngineOptions* options = nullptr;
    const Engine* engine = nullptr;
    const std::map<std::string, std::string>* settings = nullptr;
  };
  /// All references must stay valid. Throws IoError where the file of --timeline cannot be made.
  ReportFiles(const TrainJob& job, const Facts& facts);

  /// The run begins after step `resumed_from` (0: a new run).
  void begin(int64_t resumed_from);
  /// Where the step is to be recorded.
  std::optional<TimelineRecorder> record(int64_t step,
                                         std::chrono::steady_clock::time_point begin) const;
  void end_step(const StepReport& report, std::optional<TimelineRecorder> recorder);
  void end(const TrainSummary& summary);

 private:
  bool has_steps() const { return first_step_ <= job_.steps; }
  bool is_kept(int64_t step) const;
  int64_t last_kept() const;
  bool is_traced(int64_t step) const;
  void write(const TrainSummary* summary);
  void keep_timeline(const StepTimeline& timeline);
  void trace(const StepTimeline& timeline);

  const TrainJob& job_;
  Facts facts_;
  TimelineTitle title_;
  StepRange traced_;
  std::optional<TraceEventFile> trace_;
  bool has_traced_ = false;
  int64_t first_step_ = 1;
  std::optional<ScheduleGap> gap_;
};

}  // namespace headrace::engine
