#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::model {

/// Where the documents that share sequences of tokens begin and end, as device::Documents has it:
/// one entry per token, counted from the first token of its sequence. Empty: not packed.
struct DocumentBorders {
  std::vector<int32_t> begins;
  std::vector<int32_t> ends;
};

/// Of whole sequences of `seq` tokens. A document ends with the token `document_end`, which belongs
/// to it, or with the sequence.
DocumentBorders find_documents(std::span<const int32_t> ids, int64_t seq, int32_t document_end);

}  // namespace headrace::model
