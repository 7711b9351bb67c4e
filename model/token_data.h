#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/documents.h"

namespace headrace::model {

/// One training or validation batch: `batch` sequences of `seq` tokens. labels are already shifted:
/// labels[t] is the token that follows ids[t], or -100 where ignored.
struct TokenBatch {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  int64_t counted_labels = 0;  ///< labels that are not -100
  DocumentBorders documents;   ///< with TokenDataOptions::document_end
};

/// Makes sequences of `seq` tokens packed ones: finds their documents and ignores the label of each
/// token that ends one, which is the first token of the next. Tokens see the last `window`.
void separate_documents(int64_t seq, int32_t document_end, std::optional<int64_t> window,
                        TokenBatch& batch);

struct TokenDataOptions {
  int64_t seq = 512;
  int64_t vocab_size = 0;  ///< tokens outside are an InputError naming position and value
  uint64_t seed = 0;
  double validation_fraction =
      0;                    ///< share of the sequences held out (the last ones before shuffling)
  bool byte_level = false;  ///< the model has a byte-level vocabulary: plain text is accepted
  std::string bin_dtype = "auto";  ///< "uint16", "uint32" or "auto" (by header or vocabulary size)
  bool shuffle = true;             ///< false: every epoch in file order
  std::optional<int32_t> document_end;  ///< sequences are packed; see separate_documents()
  std::optional<int64_t> window;        ///< of the model, for packed sequences
};

/// Token sequences from a file, read with pread window by window so that a data set larger than
/// memory works and memory stays small: plain text (byte-level), .bin (uint16 or uint32, raw as
/// nanoGPT writes or with llm.c's 1024-byte header), .safetensors with integer input_ids and
/// optional labels. Labels in a file are as Hugging Face has them: of input_ids' shape, labels[t]
/// belongs to input_ids[t], -100 is ignored; the shift happens here.
///
/// A stream of N tokens (text, .bin, input_ids of shape [N]) is cut: sequence i covers tokens
/// [i * seq, i * seq + seq], so that the label of the last position is the first token of the next;
/// (N - 1) / seq sequences. Rows (input_ids of shape [R, S]) never run into each other: S must be a
/// multiple of seq, or one more than a multiple; each row gives S / seq sequences, and where the
/// row has no next token the label is -100. A single row of another length is taken as a stream.
///
/// Token values are checked when a batch is read, and for files up to 64 MiB also at the start. The
/// training order is a seeded permutation per epoch in constant memory and a pure function of
/// (seed, index): the position to resume from is one number. Thread-safe. Throws InputError.
class TokenData {
 public:
  static std::unique_ptr<TokenData> open(const std::string& path, const TokenDataOptions& options);
  virtual ~TokenData() = default;

  virtual int64_t training_sequences() const = 0;
  virtual int64_t validation_sequences() const = 0;
  /// Sequences [first, first + count) of the endless shuffled training order.
  virtual TokenBatch training_batch(int64_t first, int64_t count) const = 0;
  /// Sequences [first, first + count) of the validation set, unshuffled.
  virtual TokenBatch validation_batch(int64_t first, int64_t count) const = 0;
};

}  // namespace headrace::model
