#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/announced_run.h"
#include "engine/executor.h"
#include "engine/step_residency.h"
#include "scheduler/trace_follower.h"

namespace headrace::engine {

struct AnnouncedOptions {
  scheduler::Budgets budgets;
  scheduler::Rates rates;
  /// Compiles steps that are expected to be like a former one. Null: optimal.
  std::shared_ptr<const scheduler::Policy> policy;
  /// Compiles what is left of one after a deviation, while the step waits. Null: optimal with quick
  /// effort, or `policy` where that is given.
  std::shared_ptr<const scheduler::Policy> rest_policy;
  size_t most_traces = 8;  ///< that are remembered
  /// Told why a step left the trace that it followed, and what it follows from there, a sentence
  /// each (DeepSpeed's log_trace_cache_warnings). Empty: nobody is.
  std::function<void(const std::string&)> warn;
};

/// How the step that is under way relates to those that are remembered.
enum class TraceMode : uint8_t {
  record,    ///< nothing is known of it: its objects are fetched on demand
  complete,  ///< it follows a remembered trace: its objects are fetched ahead
  invalid,   ///< it has left the trace it followed, and is fetched on demand
};

/// What a step did.
struct AnnouncedReport {
  size_t operations = 0;
  size_t on_demand = 0;   ///< operations that were compiled alone, when they came
  size_t deviations = 0;  ///< operations that a followed trace did not have there
  size_t parts = 0;       ///< schedules that were run, the return of changed values included
  /// Transfers towards an operation that were decided when it had been announced already.
  size_t demand_fetches = 0;
  bool is_remembered = false;
  TimeSplit split;  ///< of the time in which schedules ran
  tiers::TierTraffic traffic;
};

/// Steps whose operations are not known beforehand: a client announces them one by one and works on
/// their objects where they need them. The first step is recorded; later ones that begin as a
/// remembered one does run with that one's compiled schedule, whose transfers go on ahead. When an
/// operation comes that the trace does not have there, nothing more of that schedule is started,
/// and from what is resident then the step goes on with another remembered trace, or on demand
/// until the sequence is that of a remembered trace again (scheduler::TraceFollower). Bytes are the
/// same whatever was expected.
///
/// An object without home has a value from the operation that writes it to the one that discards
/// it, at most until the end of the step. After end() values are at home.
///
/// Not thread-safe: one client, which waits in enter() for the objects of its operation. Transfers
/// go on without it.
class AnnouncedStep {
 public:
  /// The store's objects are those of the table, with home slots in place; their values are the
  /// client's between steps too. Executor and store must outlive this.
  AnnouncedStep(Executor& executor, std::vector<scheduler::ObjectFacts> objects,
                AnnouncedOptions options);
  AnnouncedStep(const AnnouncedStep&) = delete;
  AnnouncedStep& operator=(const AnnouncedStep&) = delete;
  ~AnnouncedStep();

  /// A step begins; what it is expected to need first is fetched from now on.
  void begin();
  /// Announces an operation and returns the bytes of its uses, which are the client's until the
  /// completion that it gives to leave() has ended. InputError when the operation cannot run on its
  /// objects as they are, and CapacityError when they do not fit; both name it. It does not take
  /// place then. The same for the error of an earlier operation or of a transfer. The step may go
  /// on after any of them, on demand, but it is not remembered.
  std::vector<std::span<std::byte>> enter(const scheduler::Operation& operation);
  void leave(const Completion& end);
  /// enter(), the work on the operation's lane as Executor::run does it, leave(): returns when it
  /// is posted. What the work throws comes now, or with a later call.
  void run(const scheduler::Operation& operation, std::function<void(UseBytes)> work);
  /// The step has ended: values go home, objects without home are gone. After an error the step has
  /// ended all the same; values that could not go home do so at the next end.
  AnnouncedReport end();

  TraceMode mode() const;
  size_t remembered() const { return follower_.remembered(); }

 private:
  /// A schedule with what it was compiled from.
  struct Compiled {
    scheduler::TracePlace from;
    size_t operations = 0;
    std::vector<scheduler::Residency> initial;
    std::shared_ptr<const scheduler::Trace> trace;
    std::shared_ptr<const scheduler::Schedule> schedule;
  };
  /// The schedule that runs now.
  struct Part {
    std::unique_ptr<AnnouncedRun> run;
    size_t first = 0;  ///< operation of the step
    bool is_to_end = false;
  };

  void serve(const scheduler::Operation& operation, const scheduler::FollowStep& step);
  bool start_rest(const scheduler::TracePlace& place, bool is_announced);
  void start_on_demand(const scheduler::Operation& operation);
  void start(std::shared_ptr<const scheduler::Trace> trace,
             std::shared_ptr<const scheduler::Schedule> schedule, bool is_to_end);
  size_t possible_operations(const scheduler::TracePlace& place) const;
  const Compiled& compile_rest(const scheduler::TracePlace& place, size_t operations);
  scheduler::CompileInput input_of(const scheduler::Trace& trace,
                                   scheduler::Foresight foresight) const;
  std::vector<uint32_t> next_uses() const;
  void settle();
  void abandon();
  void note(const RunReport& report, size_t first);
  void bring_home();
  void remember();
  void forget_schedules(uint64_t trace);
  void explain(const scheduler::Operation& operation, const scheduler::FollowStep& step);
  std::string describe(const scheduler::TracePlace& place) const;
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args);

  Executor& executor_;
  tiers::TieredStore& store_;
  std::vector<scheduler::ObjectFacts> objects_;
  AnnouncedOptions options_;
  scheduler::TraceFollower follower_;
  StepResidency residency_;
  std::vector<scheduler::Residency> resident_;  ///< when no part runs
  std::vector<Compiled> compiled_;              ///< the one used last comes last
  SerialWorker driver_;
  std::optional<Part> part_;
  bool is_in_step_ = false;
  bool is_in_operation_ = false;
  bool rest_fits_ = true;
  int64_t step_ = 0;
  std::vector<double> seconds_;  ///< by operation of the step
  tiers::TierTraffic traffic_before_;
  AnnouncedReport report_;
};

}  // namespace headrace::engine
