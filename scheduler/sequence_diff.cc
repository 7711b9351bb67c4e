#include "scheduler/sequence_diff.h"

#include <algorithm>
#include <span>

namespace headrace::scheduler {

namespace {

using Elements32 = std::span<const uint32_t>;

/// E. W. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986): on diagonal k = x - y,
/// reach_[d][k] is the largest x that d deletions and insertions lead to.
class EditPath {
 public:
  EditPath(Elements32 first, Elements32 second) : first_(first), second_(second) {}

  /// False if more than `most_edits` are needed.
  bool find(size_t most_edits) {
    const auto most = static_cast<int64_t>(std::min(most_edits, first_.size() + second_.size()));
    for (int64_t d = 0; d <= most; ++d) {
      reach_.emplace_back(static_cast<size_t>(2 * d + 1));
      for (int64_t k = -d; k <= d; k += 2) {
        int64_t x = start(d, k);
        while (x < size(first_) && x - k < size(second_) &&
               first_[static_cast<size_t>(x)] == second_[static_cast<size_t>(x - k)]) {
          ++x;
        }
        reach(d, k) = x;
        if (x >= size(first_) && x - k >= size(second_)) {
          return true;
        }
      }
    }
    return false;
  }

  /// The ranges that the edits cover, from the end to the begin.
  std::vector<DifferingRange> ranges_backwards() const {
    std::vector<DifferingRange> ranges;
    int64_t x = size(first_);
    int64_t y = size(second_);
    for (auto d = static_cast<int64_t>(reach_.size()) - 1; d > 0; --d) {
      const int64_t k = x - y;
      const bool inserts = is_insertion(d, k);
      const int64_t after = start(d, k);  // x behind the edit
      const DifferingRange edit{
          static_cast<size_t>(inserts ? after : after - 1), static_cast<size_t>(after),
          static_cast<size_t>(inserts ? after - k - 1 : after - k), static_cast<size_t>(after - k)};
      if (!ranges.empty() && ranges.back().first_begin == edit.first_end &&
          ranges.back().second_begin == edit.second_end) {
        ranges.back().first_begin = edit.first_begin;
        ranges.back().second_begin = edit.second_begin;
      } else {
        ranges.push_back(edit);
      }
      x = static_cast<int64_t>(edit.first_begin);
      y = static_cast<int64_t>(edit.second_begin);
    }
    return ranges;
  }

 private:
  static int64_t size(Elements32 elements) { return static_cast<int64_t>(elements.size()); }
  int64_t& reach(int64_t d, int64_t k) {
    return reach_[static_cast<size_t>(d)][static_cast<size_t>(k + d)];
  }
  int64_t reach(int64_t d, int64_t k) const {
    return reach_[static_cast<size_t>(d)][static_cast<size_t>(k + d)];
  }
  /// Whether the last of d edits on the way to diagonal k takes an element of the second sequence.
  bool is_insertion(int64_t d, int64_t k) const {
    return k == -d || (k != d && reach(d - 1, k - 1) < reach(d - 1, k + 1));
  }
  /// x behind the last of d edits, on diagonal k.
  int64_t start(int64_t d, int64_t k) const {
    if (d == 0) {
      return 0;
    }
    return is_insertion(d, k) ? reach(d - 1, k + 1) : reach(d - 1, k - 1) + 1;
  }

  Elements32 first_;
  Elements32 second_;
  std::vector<std::vector<int64_t>> reach_;
};

}  // namespace

std::vector<DifferingRange> differing_ranges(const std::vector<uint32_t>& first,
                                             const std::vector<uint32_t>& second,
                                             size_t most_edits) {
  const size_t shorter = std::min(first.size(), second.size());
  size_t head = 0;
  while (head < shorter && first[head] == second[head]) {
    ++head;
  }
  size_t tail = 0;
  while (tail < shorter - head &&
         first[first.size() - 1 - tail] == second[second.size() - 1 - tail]) {
    ++tail;
  }
  const DifferingRange middle{head, first.size() - tail, head, second.size() - tail};
  if (middle.first_begin == middle.first_end && middle.second_begin == middle.second_end) {
    return {};
  }
  EditPath path(Elements32(first).subspan(head, middle.first_end - head),
                Elements32(second).subspan(head, middle.second_end - head));
  if (!path.find(most_edits)) {
    return {middle};
  }
  std::vector<DifferingRange> ranges = path.ranges_backwards();
  std::reverse(ranges.begin(), ranges.end());
  for (DifferingRange& range : ranges) {
    range = {range.first_begin + head, range.first_end + head, range.second_begin + head,
             range.second_end + head};
  }
  return ranges;
}

}  // namespace headrace::scheduler
