#include "model/documents.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::model {

DocumentBorders find_documents(std::span<const int32_t> ids, int64_t seq, int32_t document_end) {
  const auto count = static_cast<int64_t>(ids.size());
  HR_CHECK(seq > 0 && count % seq == 0, "documents of {} tokens in sequences of {}", count, seq);
  DocumentBorders borders;
  borders.begins.resize(ids.size());
  borders.ends.resize(ids.size());
  for (int64_t first = 0; first < count;) {
    const int64_t sequence = first / seq * seq;
    const auto found =
        std::find(ids.begin() + first, ids.begin() + sequence + seq - 1, document_end);
    const int64_t end = found - ids.begin() + 1;
    std::fill(borders.begins.begin() + first, borders.begins.begin() + end,
              static_cast<int32_t>(first - sequence));
    std::fill(borders.ends.begin() + first, borders.ends.begin() + end,
              static_cast<int32_t>(end - sequence));
    first = end;
  }
  return borders;
}

}  // namespace headrace::model
