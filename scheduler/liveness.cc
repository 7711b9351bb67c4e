#include "scheduler/liveness.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "scheduler/placement.h"

namespace headrace::scheduler {

namespace {

/// An operation that uses parameters.
struct Module {
  uint32_t operation = 0;
  Tier tier = Tier::device;
  std::vector<ObjectId> parameters;  ///< ascending
};

/// Follows the counters of ZeRO-3 through the modules of a trace.
class Coordinator {
 public:
  Coordinator(const CompileInput& input, const std::vector<Elements>& parameters,
              const LivenessLimits& limits)
      : trace_(*input.trace),
        elements_(parameters),
        limits_(limits),
        available_(parameters.size()),
        persistent_(parameters.size()),
        fetched_for_(parameters.size(), -1) {
    if (parameters.size() != input.objects->size()) {
      throw InputError(fmt::format("liveness: {} element counts for {} objects", parameters.size(),
                                   input.objects->size()));
    }
    plan_.operations.resize(trace_.operations.size() + 1);
    choose_persistent();
    for (const Residency& residency : input.initial) {
      if (is_parameter(residency.object) && residency.tier == compute_tier()) {
        available_[index_of(residency.object)] = true;
      }
    }
  }

  LivenessPlan run() {
    for (uint32_t i = 0; i < trace_.operations.size(); ++i) {
      if (i == 0 || trace_.operations[i].starts_pass) {
        begin_pass(i);
      }
      if (step_ < pass_.size() && pass_[step_].operation == i) {
        fetch();
        release();
      } else {
        note_changes(trace_.operations[i]);
      }
    }
    // After the optimizer step the persistent parameters are gathered again.
    OperationGuide& end = plan_.operations.back();
    end.prefetch = plan_.persistent;
    end.prefetch_tier = compute_tier();
    end.live = live();
    return std::move(plan_);
  }

 private:
  bool is_parameter(ObjectId object) const { return elements_[index_of(object)].count() > 0; }
  int64_t elements(ObjectId object) const { return elements_[index_of(object)].count(); }

  /// Where the first module finds its parameters.
  Tier compute_tier() const {
    for (const Operation& operation : trace_.operations) {
      for (const Use& use : operation.uses) {
        if (operation.lane == Lane::compute && is_parameter(use.object)) {
          return use.tier;
        }
      }
    }
    return Tier::host;
  }

  void choose_persistent() {
    int64_t total = 0;
    for (uint32_t o = 0; o < elements_.size(); ++o) {
      const int64_t count = elements_[o].count();
      if (count > 0 && count <= limits_.persistence_threshold.count() &&
          count <= limits_.model_persistence_threshold.count() - total) {
        persistent_[o] = true;
        plan_.persistent.push_back(ObjectId{o});
        total += count;
      }
    }
  }

  /// Collects the modules of the pass that begins here and starts its queue and counters.
  void begin_pass(uint32_t first) {
    pass_.clear();
    queue_.clear();
    step_ = 0;
    available_elements_ = 0;
    std::fill(fetched_for_.begin(), fetched_for_.end(), -1);
    for (uint32_t i = first; i < trace_.operations.size(); ++i) {
      const Operation& operation = trace_.operations[i];
      if (i > first && operation.starts_pass) {
        break;
      }
      Module module;
      module.operation = i;
      for (const Use& use : operation.uses) {
        if (operation.lane == Lane::compute && is_parameter(use.object)) {
          module.tier = use.tier;
          module.parameters.push_back(use.object);
        }
      }
      if (module.parameters.empty()) {
        continue;
      }
      std::sort(module.parameters.begin(), module.parameters.end());
      for (const ObjectId object : module.parameters) {
        queue_.push_back({object, static_cast<int64_t>(pass_.size())});
      }
      pass_.push_back(std::move(module));
    }
  }

  void make_available(ObjectId object) {
    available_[index_of(object)] = true;
    available_elements_ += elements(object);
  }

  void fetch() {
    const Module& module = pass_[step_];
    for (const ObjectId object : module.parameters) {
      if (!available_[index_of(object)]) {
        make_available(object);
      }
    }
    while (!queue_.empty() && queue_.front().step <= static_cast<int64_t>(step_)) {
      queue_.pop_front();
    }
    OperationGuide& guide = plan_.operations[module.operation];
    guide.prefetch_tier = module.tier;
    guide.live = live();
    if (limits_.prefetch_bucket.count() > 0) {
      prefetch(guide);
    }
    ++step_;
  }

  void prefetch(OperationGuide& guide) {
    const int64_t budget = std::min(limits_.max_live_parameters.count() - available_elements_,
                                    limits_.prefetch_bucket.count());
    int64_t collected = 0;
    while (!queue_.empty() && collected < budget) {
      const auto [object, step] = queue_.front();
      queue_.pop_front();
      int64_t& fetched_for = fetched_for_[index_of(object)];
      fetched_for = std::max(fetched_for, step);
      if (!available_[index_of(object)]) {
        guide.prefetch.push_back(object);
        make_available(object);
        collected += elements(object);
      }
    }
  }

  /// After a module; the step counter stands at the next one.
  void release() {
    const Module& module = pass_[step_ - 1];
    std::vector<ObjectId> candidates;
    for (const ObjectId object : module.parameters) {
      if (!persistent_[index_of(object)] &&
          fetched_for_[index_of(object)] <= static_cast<int64_t>(step_)) {
        candidates.push_back(object);
      }
    }
    int64_t walked = 0;
    for (size_t next = step_; next < pass_.size() && walked < limits_.max_reuse_distance.count();
         ++next) {
      for (const ObjectId object : pass_[next].parameters) {
        candidates.erase(std::remove(candidates.begin(), candidates.end(), object),
                         candidates.end());
        walked += elements(object);
      }
    }
    for (const ObjectId object : candidates) {
      available_[index_of(object)] = false;
      available_elements_ -= elements(object);
    }
    plan_.operations[module.operation].release = std::move(candidates);
  }

  /// The optimizer writes new values, elsewhere.
  void note_changes(const Operation& operation) {
    for (const Use& use : operation.uses) {
      if (is_parameter(use.object) && writes(use.access)) {
        available_[index_of(use.object)] = false;
      }
    }
  }

  std::vector<ObjectId> live() const {
    std::vector<ObjectId> objects;
    for (uint32_t o = 0; o < available_.size(); ++o) {
      if (available_[o]) {
        objects.push_back(ObjectId{o});
      }
    }
    return objects;
  }

  struct Queued {
    ObjectId object{};
    int64_t step = 0;
  };

  const Trace& trace_;
  const std::vector<Elements>& elements_;
  const LivenessLimits& limits_;
  std::vector<bool> available_;
  std::vector<bool> persistent_;
  std::vector<int64_t> fetched_for_;  ///< by object: the last step it was prefetched or skipped for
  std::vector<Module> pass_;
  std::deque<Queued> queue_;  ///< parameters of the modules to come
  size_t step_ = 0;
  int64_t available_elements_ = 0;  ///< those that a pass found available are not counted
  LivenessPlan plan_;
};

}  // namespace

LivenessPlan plan_liveness(const CompileInput& input, const std::vector<Elements>& parameters,
                           const LivenessLimits& limits) {
  return Coordinator(input, parameters, limits).run();
}

}  // namespace headrace::scheduler
