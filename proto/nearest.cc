#include "proto/nearest.h"

#include <algorithm>

namespace headrace::proto {
namespace {

constexpr size_t kLongestWord = 100;
constexpr size_t kShortestBeginning = 4;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// For names that were cut short.
std::optional<std::string> shortest_beginning_with(std::string_view word,
                                                   const std::vector<std::string>& candidates) {
  std::optional<std::string> shortest;
  for (const std::string& candidate : candidates) {
    const bool begins = word.size() >= kShortestBeginning && candidate.size() > word.size() &&
                        edit_distance(word, candidate.substr(0, word.size())) == 0;
    if (begins && (!shortest || candidate.size() < shortest->size())) {
      shortest = candidate;
    }
  }
  return shortest;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: swaps look two rows back.
  std::vector<int> before_last(b.size() + 1);
  std::vector<int> last(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    last[j] = static_cast<int>(j);
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = last[j - 1] + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1])) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates) {
  if (word.size() > kLongestWord) {
    return std::nullopt;
  }
  std::optional<std::string> best;
  int best_distance = std::max(1, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best ? best : shortest_beginning_with(word, candidates);
}

}  // namespace headrace::proto
