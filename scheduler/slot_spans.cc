#include "scheduler/slot_spans.h"

#include <algorithm>

#include "scheduler/costs.h"
#include "scheduler/placement.h"

namespace headrace::scheduler {

namespace {

class SpanReader {
 public:
  SpanReader(const CompileInput& input, const Footprint& footprint,
             const UnplacedSchedule& unplaced)
      : input_(input),
        footprint_(footprint),
        unplaced_(unplaced),
        open_(input.objects->size(), {kNone, kNone}) {}

  std::array<std::vector<SlotSpan>, 2> read() {
    for (const Residency& residency : input_.initial) {
      if (residency.tier != Tier::nvme && floats(residency.object, residency.tier)) {
        open(residency.object, residency.tier, -1, 0).offset = residency.offset;
      }
    }
    for (size_t i = 0; i < unplaced_.schedule.actions.size(); ++i) {
      visit(unplaced_.schedule.actions[i], static_cast<int64_t>(i));
    }
    keep_for_next_round();
    add_anchored();
    return std::move(spans_);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  const ObjectFacts& facts(ObjectId object) const { return (*input_.objects)[index_of(object)]; }
  bool floats(ObjectId object, Tier tier) const {
    return tier != Tier::nvme && anchor_of(facts(object)) != tier;
  }
  size_t& span_of(ObjectId object, Tier tier) {
    return open_[index_of(object)][static_cast<size_t>(tier)];
  }

  SlotSpan& open(ObjectId object, Tier tier, int64_t action, double begin) {
    auto& spans = spans_[static_cast<size_t>(tier)];
    span_of(object, tier) = spans.size();
    return spans.emplace_back(SlotSpan{object, static_cast<uint32_t>(operations_.size()),
                                       slot_bytes(facts(object), input_.budgets.alignment), action,
                                       action, begin, begin, -1});
  }

  void touch(ObjectId object, Tier tier, int64_t action) {
    if (floats(object, tier) && span_of(object, tier) != kNone) {
      SlotSpan& span = spans_[static_cast<size_t>(tier)][span_of(object, tier)];
      span.last = action;
      span.end = std::max(span.end, unplaced_.ends[static_cast<size_t>(action)]);
    }
  }

  void fill(const Action& action, int64_t index, double begin) {
    if (floats(action.object, action.to) && span_of(action.object, action.to) == kNone) {
      open(action.object, action.to, index, begin);
    }
    touch(action.object, action.to, index);
  }

  void visit(const Action& action, int64_t index) {
    const double end = unplaced_.ends[static_cast<size_t>(index)];
    switch (action.kind) {
      case ActionKind::transfer:
        touch(action.object, action.from, index);
        fill(action, index,
             end -
                 transfer_seconds(input_.rates, facts(action.object).size, action.from, action.to));
        break;
      case ActionKind::place:
        fill(action, index, end);
        break;
      case ActionKind::drop:
        if (floats(action.object, action.from)) {
          span_of(action.object, action.from) = kNone;
        }
        break;
      case ActionKind::operation:
        for (const Use& use : input_.trace->operations[action.operation].uses) {
          touch(use.object, use.tier, index);
        }
        operations_.push_back(index);
        break;
    }
  }

  /// What is left in the end serves the next round, unless that begins with replacing it.
  void keep_for_next_round() {
    std::vector<bool> useful(open_.size());
    std::vector<bool> seen(open_.size());
    for (const Operation& operation : input_.trace->operations) {
      for (const Use& use : operation.uses) {
        if (!seen[index_of(use.object)]) {
          seen[index_of(use.object)] = true;
          useful[index_of(use.object)] = use.access != Access::write;
        }
      }
    }
    for (uint32_t o = 0; o < open_.size(); ++o) {
      for (const Tier tier : {Tier::device, Tier::host}) {
        const size_t span = span_of(ObjectId{o}, tier);
        if (span != kNone && useful[o] && facts(ObjectId{o}).home) {
          spans_[static_cast<size_t>(tier)][span].last = SlotSpan::kForGood;
        }
      }
    }
  }

  /// Anchored slots of objects that live inside the trace, from what prepares their first operation
  /// to their last one.
  void add_anchored() {
    std::vector<uint32_t> from(open_.size());
    for (uint32_t i = 0; i < operations_.size(); ++i) {
      for (const ObjectId object : footprint_.anchored_from[i]) {
        from[index_of(object)] = i;
      }
      for (const ObjectId object : footprint_.anchored_until[i]) {
        const auto tier = static_cast<size_t>(*anchor_of(facts(object)));
        const uint32_t first = from[index_of(object)];
        SlotSpan span;
        span.object = object;
        span.position = first;
        span.size = slot_bytes(facts(object), input_.budgets.alignment);
        span.first = first == 0 ? 0 : operations_[first - 1] + 1;
        span.last = operations_[i];
        span.begin = first == 0 ? 0 : unplaced_.ends[static_cast<size_t>(operations_[first - 1])];
        span.end = unplaced_.ends[static_cast<size_t>(operations_[i])];
        span.offset = footprint_.homes[tier] + footprint_.anchor_offset[index_of(object)];
        spans_[tier].push_back(span);
      }
    }
  }

  const CompileInput& input_;
  const Footprint& footprint_;
  const UnplacedSchedule& unplaced_;
  std::array<std::vector<SlotSpan>, 2> spans_;
  std::vector<std::array<size_t, 2>> open_;  ///< by object and tier: its span now
  std::vector<int64_t> operations_;          ///< actions of the operations so far
};

}  // namespace

std::array<std::vector<SlotSpan>, 2> slot_spans(const CompileInput& input,
                                                const Footprint& footprint,
                                                const UnplacedSchedule& unplaced) {
  return SpanReader(input, footprint, unplaced).read();
}

}  // namespace headrace::scheduler
