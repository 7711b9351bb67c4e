#include "model/documents.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::model {

namespace {

/// Adds a document of a sequence.
void add_document(int64_t begin, int64_t end, std::optional<int64_t> window,
                  DocumentBorders& borders) {
  const int64_t most = window.value_or(end - begin);
  for (int64_t at = begin; at < end; ++at) {
    borders.begins.push_back(static_cast<int32_t>(begin));
    borders.seen_from.push_back(static_cast<int32_t>(std::max(begin, at - most + 1)));
    borders.seen_until.push_back(static_cast<int32_t>(std::min(end, at + most)));
  }
}

}  // namespace

DocumentBorders whole_sequences(int64_t count, int64_t seq, std::optional<int64_t> window) {
  HR_CHECK(seq > 0 && count % seq == 0, "{} tokens in sequences of {}", count, seq);
  DocumentBorders borders;
  for (int64_t sequence = 0; sequence < count; sequence += seq) {
    add_document(0, seq, window, borders);
  }
  return borders;
}

DocumentBorders find_documents(std::span<const int32_t> ids, int64_t seq, int32_t document_end,
                               std::optional<int64_t> window) {
  const auto count = static_cast<int64_t>(ids.size());
  HR_CHECK(seq > 0 && count % seq == 0, "documents of {} tokens in sequences of {}", count, seq);
  DocumentBorders borders;
  for (int64_t first = 0; first < count;) {
    const int64_t sequence = first / seq * seq;
    const auto found =
        std::find(ids.begin() + first, ids.begin() + sequence + seq - 1, document_end);
    const int64_t end = found - ids.begin() + 1;
    add_document(first - sequence, end - sequence, window, borders);
    first = end;
  }
  return borders;
}

}  // namespace headrace::model
