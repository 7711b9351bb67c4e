#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "scheduler/trace.h"

namespace headrace::scheduler {

/// An operation of a remembered trace.
struct TracePlace {
  uint64_t trace = 0;   ///< never used again for another trace
  size_t position = 0;  ///< of the operation

  bool operator==(const TracePlace&) const = default;
};

enum class FollowEvent : uint8_t {
  follows,   ///< the operation was expected
  switched,  ///< it was not, but another remembered trace begins with what the step has done so far
  rejoined,  ///< the sequence is that of a remembered trace again, from this operation on
  lost,      ///< nothing tells what comes next
};

/// What an announced operation means.
struct FollowStep {
  FollowEvent event = FollowEvent::lost;
  std::optional<TracePlace> place;  ///< of the operation; empty when lost
  /// What a followed trace had here; its length as position: it had ended. Empty where no trace was
  /// followed, and where it is followed still.
  std::optional<TracePlace> instead_of;
};

/// What a step was when it has ended.
struct FollowEnd {
  std::optional<uint64_t> trace;      ///< that is exactly this step; empty: it is not remembered
  bool is_new = false;                ///< the trace was not known before
  bool has_new_seconds = false;       ///< durations of the trace's operations were set
  std::optional<uint64_t> forgotten;  ///< had to make room
  /// Where the trace that was followed would have gone on.
  std::optional<TracePlace> ended_before;
};

/// Recognizes in a sequence of operations, told one by one, the sequences of former steps. Pure: no
/// I/O, no threads; not thread-safe.
///
/// A step begins with the trace that followed most often after the last few, among those that came
/// more than once. When an operation is not the expected one, another remembered trace that begins
/// with what the step has done so far is followed at once. Else the sequence rejoins a trace where
/// the operation comes soon after the place that was left (kNear more than operations came since),
/// or where kEnough operations up to this one come in a row in some remembered trace; the nearest
/// such place in the trace that was left, else the longest match.
///
/// Operations are the same where name, lane and uses are.
class TraceFollower {
 public:
  static constexpr size_t kNear = 4;
  static constexpr size_t kEnough = 2;
  static constexpr size_t kLongestMatch = 16;  ///< longer ones count as this long

  /// Remembers up to `most_traces` traces, at least one.
  explicit TraceFollower(size_t most_traces = 8);

  /// A step begins. Empty: nothing is remembered.
  std::optional<TracePlace> begin();
  FollowStep announce(const Operation& operation);
  /// The step went wrong: it is not remembered, and nothing is expected any more.
  void give_up();
  /// The step has ended. `seconds` that its operations took, in order: kept for a new trace and
  /// when it came for the second time.
  FollowEnd end(const std::vector<double>& seconds);

  /// What is expected next; the trace's length as position: its end. Empty: lost.
  std::optional<TracePlace> expected() const { return expected_; }
  /// A trace was followed in this step, and is not followed now.
  bool has_diverged() const { return left_.has_value() && !expected_; }
  /// Where the trace that was left last would have gone on, or what is expected next.
  std::optional<TracePlace> outlook() const { return expected_ ? expected_ : left_; }
  /// Operations that came in this step.
  size_t operations() const { return ran_.size(); }

  size_t remembered() const { return known_.size(); }
  const Trace& trace(uint64_t id) const;

 private:
  /// Operations with their hashes, which are compared first.
  struct Sequence {
    Trace trace;
    std::vector<uint64_t> hashes;

    void add(const Operation& operation);
    size_t size() const { return hashes.size(); }
    bool has(size_t position, const Sequence& other, size_t at) const;
    bool begins_with(const Sequence& other) const;
  };
  struct Known {
    uint64_t id = 0;
    Sequence sequence;
    int64_t times = 0;  ///< that a step was this trace
    int64_t last_step = 0;
  };
  /// A place where the step could go on: how well what came fits there.
  struct Candidate {
    TracePlace place;
    size_t match = 0;     ///< operations in a row up to this one
    size_t distance = 0;  ///< from the place that was left, in the same trace
    bool is_near = false;
    bool is_same_trace = false;
    int64_t last_step = 0;
  };

  const Known* find(uint64_t id) const;
  static bool is_less_usual(const Known& a, const Known& b);
  std::optional<uint64_t> guess() const;
  std::optional<TracePlace> switch_trace();
  std::optional<TracePlace> rejoin() const;
  Candidate candidate(const Known& known, size_t position) const;
  static bool is_better(const Candidate& a, const Candidate& b);
  Known* same_as_step();
  std::optional<uint64_t> make_room();

  size_t most_traces_;
  std::vector<Known> known_;
  std::deque<uint64_t> history_;  ///< the traces of the last steps
  uint64_t next_id_ = 1;
  int64_t step_ = 0;
  Sequence ran_;
  std::optional<TracePlace> expected_;
  std::optional<TracePlace> left_;  ///< what was expected when the trace was left last
  size_t since_left_ = 0;           ///< operations since, with the one that was not expected
  bool gave_up_ = false;
};

/// The same name, lane and uses.
bool is_same_operation(const Operation& a, const Operation& b);

}  // namespace headrace::scheduler
