#include "scheduler/slot_plan.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "scheduler/slot_spans.h"

namespace headrace::scheduler {

namespace {

/// Places the spans of one arena, one after another, among those that have their place.
class Packer {
 public:
  Packer(int64_t low, int64_t high) : low_(low), high_(high) {}

  void add(const SlotSpan& span) { placed_.push_back(span); }

  /// Where the span would wait least for what lies there before, or keep waiting what lies there
  /// after; among these in the smallest gap. Empty where it finds no gap.
  std::optional<int64_t> find(const SlotSpan& span) {
    look_around(span);
    std::optional<int64_t> best;
    double least_wait = std::numeric_limits<double>::infinity();
    int64_t smallest_gap = 0;
    int64_t begin = low_;
    busy_.push_back({high_, high_, 0});
    for (const Range& busy : busy_) {
      const int64_t gap = busy.begin - begin;
      if (gap >= span.size) {
        for (const int64_t offset : {busy.begin - span.size, begin}) {
          const double wait = wait_at(offset, offset + span.size);
          if (wait < least_wait || (wait == least_wait && gap < smallest_gap)) {
            least_wait = wait;
            smallest_gap = gap;
            best = offset;
          }
        }
      }
      begin = std::max(begin, busy.end);
    }
    return best;
  }

 private:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    double wait = 0;
  };

  void look_around(const SlotSpan& span) {
    busy_.clear();
    late_.clear();
    for (const SlotSpan& other : placed_) {
      const Range range{other.offset, other.offset + other.size,
                        other.last < span.first ? other.end - span.begin : span.end - other.begin};
      if (other.first <= span.last && span.first <= other.last) {
        busy_.push_back(range);
      } else if (range.wait > 0) {
        late_.push_back(range);
      }
    }
    std::sort(busy_.begin(), busy_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
  }

  double wait_at(int64_t begin, int64_t end) const {
    double wait = 0;
    for (const Range& range : late_) {
      if (range.begin < end && begin < range.end) {
        wait = std::max(wait, range.wait);
      }
    }
    return wait;
  }

  int64_t low_;
  int64_t high_;
  std::vector<SlotSpan> placed_;
  std::vector<Range> busy_;  ///< where others are needed at the same time
  std::vector<Range> late_;  ///< where others are needed before or after, so that one has to wait
};

}  // namespace

SlotPlan::SlotPlan(const CompileInput& input, const Footprint& footprint,
                   const UnplacedSchedule& unplaced) {
  auto spans_of_tiers = slot_spans(input, footprint, unplaced);
  const std::array<int64_t, 2> budgets = {input.budgets.device.count(), input.budgets.host.count()};
  for (size_t tier = 0; tier < spans_of_tiers.size(); ++tier) {
    Packer packer(footprint.homes[tier], budgets[tier]);
    std::vector<SlotSpan> free;
    for (const SlotSpan& span : spans_of_tiers[tier]) {
      if (span.offset >= 0) {
        packer.add(span);
      } else {
        free.push_back(span);
      }
    }
    // The large ones find a place most hardly, then the long ones.
    std::stable_sort(free.begin(), free.end(), [](const SlotSpan& a, const SlotSpan& b) {
      return std::make_tuple(-a.size, a.first - a.last) <
             std::make_tuple(-b.size, b.first - b.last);
    });
    for (SlotSpan& span : free) {
      if (const auto offset = packer.find(span)) {
        span.offset = *offset;
        packer.add(span);
        places_[tier].push_back({index_of(span.object), span.position, *offset});
      }
    }
    std::stable_sort(places_[tier].begin(), places_[tier].end(),
                     [](const Place& a, const Place& b) {
                       return std::tie(a.object, a.position) < std::tie(b.object, b.position);
                     });
  }
}

std::optional<int64_t> SlotPlan::offset_of(ObjectId object, Tier tier, uint32_t position) const {
  const auto& places = places_[static_cast<size_t>(tier)];
  const auto key = std::make_tuple(index_of(object), position);
  const auto place = std::lower_bound(
      places.begin(), places.end(), key, [](const Place& candidate, const auto& k) {
        return std::make_tuple(candidate.object, candidate.position) < k;
      });
  if (place == places.end() || std::make_tuple(place->object, place->position) != key) {
    return std::nullopt;
  }
  return place->offset;
}

}  // namespace headrace::scheduler
