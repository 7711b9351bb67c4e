#include "proto/problems.h"

#include "base/error.h"

namespace headrace::proto {

void Problems::throw_if_any(const std::string& source) const {
  if (texts_.empty()) {
    return;
  }
  if (texts_.size() == 1) {
    throw InputError(fmt::format("{}: {}", source, texts_.front()));
  }
  std::string text =
      fmt::format("{}: {}{} problems:", source, full() ? "at least " : "", texts_.size());
  for (const std::string& problem : texts_) {
    text += "\n  - " + problem;
  }
  throw InputError(text);
}

}  // namespace headrace::proto
