#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::proto {

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`, ignoring case.
/// Optimal string alignment distance. O(|a|*|b|): callers bound the lengths.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word` when it is near enough to be a misspelling of it: at most a
/// third of the letters differ. Else the shortest one that begins with the word, of 4 letters at
/// least. Nothing for words too long to be a key.
std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates);

}  // namespace headrace::proto
