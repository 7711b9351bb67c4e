#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace headrace::model {

/// What tokens see of their sequences: one entry per token, counted from the first token of its
/// sequence.
struct DocumentBorders {
  std::vector<int32_t> begins;      ///< the first token of its document
  std::vector<int32_t> seen_from;   ///< the first token that it sees
  std::vector<int32_t> seen_until;  ///< behind the last one that sees it
};

/// Of `count` tokens in whole sequences of `seq`, each of one document. A token sees the last
/// `window` of its document up to itself, or all.
DocumentBorders whole_sequences(int64_t count, int64_t seq, std::optional<int64_t> window);

/// The same of sequences that documents share. A document ends with the token `document_end`, which
/// belongs to it, or with the sequence.
DocumentBorders find_documents(std::span<const int32_t> ids, int64_t seq, int32_t document_end,
                               std::optional<int64_t> window = {});

}  // namespace headrace::model
